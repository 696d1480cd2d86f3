"""Tells users the state of their groups: conditions and events, and the levels of the topology."""
