"""Decisions made again from the planner's whole input (``/debug/snapshot``, ``serried replay``)."""
