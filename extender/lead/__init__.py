"""Leadership: the Lease, the pair of an extender and its kube-scheduler, and whether filter or a gate holds members."""
