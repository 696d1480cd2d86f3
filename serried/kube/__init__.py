"""The client of the Kubernetes API: requests, watches, Events, leader election. Only this package opens connections."""
