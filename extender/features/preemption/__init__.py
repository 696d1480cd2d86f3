"""Preemption for gangs: the search for victims (`search`, `units`), and their eviction (`preempting`)."""
