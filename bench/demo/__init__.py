"""`make demo`: gangs are created on a cluster of 100 nodes in 10 racks, wait, start with all members, and end."""
