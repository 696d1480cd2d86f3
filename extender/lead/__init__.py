"""Leadership by a Lease, health checks of a kube-scheduler and its extender, and the choice of how members are held."""
