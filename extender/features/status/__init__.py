"""Tells people how their groups stand: conditions and events."""
