"""The core: decides which gang is planned when, binds what is planned, and answers kube-scheduler."""
