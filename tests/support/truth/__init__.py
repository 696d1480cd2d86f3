"""Compare placements in small random clusters with a model of kube-scheduler's filters, and with a real one."""
