"""The rules that restrict nodes because of other objects, in one package per group of kube-scheduler plugins."""
