"""What a process needs to be run: logs, metrics, probes, who may read them, and its signals."""
