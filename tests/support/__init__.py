"""Shared helpers of the tests: builders, fake API servers and harnesses. Benchmarks use the builders, too."""
