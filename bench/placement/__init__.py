"""Measures the quality of placements: gangs placed, racks and nodes used, and the largest gang that still fits.

A scenario is a partly filled cluster and a sequence of gangs. It is played by several placement rules in this process,
and by real schedulers on a real control plane, with the same pods in the same order. The entry is
`python -m bench.placement`.
"""
