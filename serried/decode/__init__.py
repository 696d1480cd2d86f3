"""JSON objects to values and back. Pure and total: an odd object becomes Malformed, never a crash."""
