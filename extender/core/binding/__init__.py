"""Carries out decisions: writes Reservations, nominations and Bindings, and continues earlier terms after a restart."""
