"""Operation of a process: logs, metrics, probes, authorization of readers, TLS, forked children, start and end."""
