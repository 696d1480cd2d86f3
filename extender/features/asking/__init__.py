"""Asking an autoscaler for the nodes of whole gangs, one gang at a time."""
