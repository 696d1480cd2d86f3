"""Job to Workload and PodGroup."""
