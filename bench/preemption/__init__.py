"""Compares preemption by native gang scheduling and by Serried: the same pods run, and the same gangs preempt them.

Counted are the victims, and the seconds until the gangs are bound. The entry is `python -m bench.preemption`.
"""
