"""Logs, metrics, probes."""
