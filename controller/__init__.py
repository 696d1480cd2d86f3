"""The controller: creates a Workload and its PodGroups for each Job, JobSet or LeaderWorkerSet that is a gang."""
