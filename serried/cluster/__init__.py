"""The cache: the state of the cluster in memory (`cache.Store`). Synchronous, without I/O and await."""
