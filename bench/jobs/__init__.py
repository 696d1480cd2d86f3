"""The numbers of the Job integration: how soon a Job has its Workload, what that costs, and what is written at rest.

`python -m bench.jobs` brings clusters of its own up, one after the other.
"""
