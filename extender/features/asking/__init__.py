"""Requests nodes from autoscalers for whole gangs, one gang at a time.

The core enters it by the feature `extender.features.asking.asking.Asking`.
"""
