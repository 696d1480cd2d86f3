"""Serried: gang scheduling and topology-aware placement for a stock kube-scheduler."""

__version__ = "0.2.0"
