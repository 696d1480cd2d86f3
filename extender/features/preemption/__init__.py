"""Preemption: who is to go for a gang, and how they are told to."""
