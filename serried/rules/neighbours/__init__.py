"""What one pod does to another: InterPodAffinity and PodTopologySpread of kube-scheduler."""
