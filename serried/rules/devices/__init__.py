"""What nodes have of devices: DynamicResources of kube-scheduler."""
