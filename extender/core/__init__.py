"""The core: which gang is planned when, what becomes of its plan, and the answers to kube-scheduler."""
