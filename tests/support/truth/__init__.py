"""What kube-scheduler itself would say of small clusters, and what a real one says."""
