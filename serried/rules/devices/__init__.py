"""The rule about devices of nodes: kube-scheduler's DynamicResources. Enter by `cluster.DeviceClaims`."""
