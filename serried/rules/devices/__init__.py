"""Rules about devices of nodes, by what kube-scheduler's DynamicResources allows. Enter by `cluster.DeviceClaims`."""
