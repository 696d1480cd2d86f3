"""The objects of the Kubernetes API as immutable values, and their decoding from JSON. One file for each kind.

Every function is pure. A decoder never raises: an object that it cannot read becomes a `names.Malformed`.
"""
