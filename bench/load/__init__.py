"""A load generator: creates plain pods, gangs and Jobs as fast as the API server takes them, and watches them bind.

`python -m bench.load --kubeconfig FILE ...` prints one JSON object; `bench.load.run.run_load` is the same in Python.
"""
