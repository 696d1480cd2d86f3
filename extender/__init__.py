"""The scheduler extender: it answers kube-scheduler's calls, plans and binds gangs, and serves ``/debug``."""
