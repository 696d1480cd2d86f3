"""The rule about other pods: kube-scheduler's InterPodAffinity and PodTopologySpread."""
