"""Preemption side by side: the same pods run, the same gangs come, scheduled natively and by Serried.

`python -m bench.preemption` counts who goes for them, and how long it takes until they are bound.
"""
