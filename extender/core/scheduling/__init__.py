"""Decides which gang is planned when, and follows each plan to its last Binding. No I/O, and nothing awaits."""
