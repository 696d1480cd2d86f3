"""The diff of one owner (a Job, JobSet, LeaderWorkerSet, ...): compares existing and needed objects. Pure functions."""
