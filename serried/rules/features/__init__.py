"""The rule about features that a node must declare for a pod: kube-scheduler's NodeDeclaredFeatures.

Enter by `cluster.DeclaredFeatures`.
"""
