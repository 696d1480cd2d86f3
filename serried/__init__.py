"""Serried: gang scheduling and topology-aware placement for a stock kube-scheduler."""

__version__ = "0.2.0"

REGISTRY = "ghcr.io/serried"
"""The registry of the releases: the image is in ``serried`` below it, the chart in ``charts/serried``."""

IMAGE = f"{REGISTRY}/serried"
"""The image, without its tag: that is the version."""
