"""The one exception that the command line turns into a sentence."""


class ClusterError(Exception):
    """Says what failed, where, and what to do about it."""
