"""``serried check``: finds mistakes in an installation, each with its fix.

command.collect ──Observed──▶ checks.check_* ──Finding──▶ table, exit code
(asks the cluster)            (no I/O)
"""
