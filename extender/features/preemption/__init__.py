"""Preemption for gangs: the search for victims (`search`), and their eviction (`preempting`).

The search chooses among units, i.e. sets of pods that are evicted together, often one pod (`units`). The core enters
the package by the feature `preempting.Preempting`.
"""
