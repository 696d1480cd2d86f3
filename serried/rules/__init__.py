"""The rules by which other objects (volumes, claims, pods) restrict on which nodes a pod fits.

There is one package per group of kube-scheduler plugins. The Store (`serried.cluster.cache`) applies those in
`serried.rules.all.RULES`.
"""
