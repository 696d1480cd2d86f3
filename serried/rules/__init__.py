"""The rules by which kube-scheduler filters nodes, one room for each kind of them."""
