"""Which features a node must declare for a pod: NodeDeclaredFeatures of kube-scheduler."""
