"""Checks the measured numbers in README and docs against the files in `bench/results/` from which they are quoted."""
