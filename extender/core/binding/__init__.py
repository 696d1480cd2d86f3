"""Carries out decisions: writes Reservations, nominations and Bindings.

After a restart it continues the binding cycles of earlier terms from their records. It is entered by
`run.CycleRunner.carry_out` after each decision, and by `recovery.Recovery.recover` when a term begins.
"""
