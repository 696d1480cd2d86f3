"""Measurements: each module prints JSON, none is shipped."""
