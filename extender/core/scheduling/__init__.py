"""Decides which gang is planned when, and follows each plan to its last Binding. No I/O, and nothing awaits.

The loop in `extender.wiring` enters it by `group_scheduler.GroupScheduler.consider`, one group at a time. What has to
be written is put into the outbox (`effects`), and carried out by `extender.core.binding`.
"""
