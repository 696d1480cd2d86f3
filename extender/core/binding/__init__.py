"""Carries out decisions: writes Reservations, nominations and Bindings, and continues earlier terms after a restart.

It is entered by `run.CycleRunner.carry_out` after each decision, and by `recovery.Recovery.recover` when a term begins.
"""
