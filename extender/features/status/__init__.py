"""Tells users the state of their groups, and which node label stands for each topology level.

`reports` writes events about a gang, `conditions` the conditions of its PodGroups, and `levels` the status of the
TopologyLevels object ``default``.
"""
