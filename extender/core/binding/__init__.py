"""Carries out what was decided: Reservations, nominations, Bindings, evictions, and what a restart finds of them."""
