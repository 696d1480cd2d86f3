"""A load generator: creates plain pods, gangs or Jobs, and measures how soon the pods are bound.

`python -m bench.load --kubeconfig FILE ...` runs one load and prints its figures as JSON; `bench.load.run.run_load` is
the same in Python.
"""
