"""Values: frozen, slotted, comparable. No I/O, no clock, no raw JSON."""
