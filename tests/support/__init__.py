"""What tests stand on: builders of objects, fake API servers, harnesses. Benchmarks use the builders, too."""
