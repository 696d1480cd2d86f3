"""`make demo`: a cluster of 100 nodes in 10 racks where gangs come, wait, start whole, and go."""
