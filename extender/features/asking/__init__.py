"""Requests nodes from autoscalers for whole gangs, one gang at a time."""
