"""The rules by which other objects (volumes, claims, pods) restrict on which nodes a pod fits.

There is one package per group of kube-scheduler plugins. `serried.rules.all` lists the rules. The Store
(`serried.cluster.cache`) creates and calls them, by the interface `serried.cluster.rule.Rule`.
"""
