"""How good placements are: gangs placed, racks and nodes used, what still fits then (`python -m bench.placement`).

One scenario of a half-filled cluster is played by several rules in this process, and by real schedulers on a real
control plane, with the same pods in the same order.
"""
