"""Serried: gang scheduling and topology-aware placement for a stock kube-scheduler."""

__version__ = "0.1.0"
