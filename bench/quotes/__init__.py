"""The numbers that README and docs quote, against the files in `bench/results/` that they come from."""
