"""What would become of gangs that do not exist, in a cluster that may be another one: ``POST /debug/whatif``."""
