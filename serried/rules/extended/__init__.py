"""The rule about extended resources that only kube-scheduler counts on some nodes: a part of NodeResourcesFit.

Enter by `cluster.ExtendedResources`.
"""
