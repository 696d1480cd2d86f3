"""Failovers between two pairs of scheduler and extender on one control plane, run as kubelets run the shipped Pods."""
