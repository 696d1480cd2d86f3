"""Two pairs of scheduler and extender on one control plane, run as kubelets run the shipped Pod, and how they fail."""
