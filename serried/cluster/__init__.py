"""State: synchronous, in memory, no I/O and no await."""
