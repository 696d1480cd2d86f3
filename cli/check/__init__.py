"""``serried check``: what is wrong with an installation, each mistake with its fix.

`collect` asks the cluster, and `Observed` is what it has found; `checks` makes findings of that, without I/O.
"""
