"""Measures the controller: how soon a Job has its Workload, the cost of that, and the writes while nothing happens.

The entry is `python -m bench.jobs`, which starts a new cluster for each part.
"""
