"""Rules about devices of nodes: kube-scheduler's DynamicResources."""
