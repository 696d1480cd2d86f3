"""The controller: creates a Workload and its PodGroups for each gang, which is a Job, JobSet, LeaderWorkerSet etc."""
