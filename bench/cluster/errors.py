"""The exception of this package that the command line prints without a traceback."""


class ClusterError(Exception):
    """An operation on a cluster failed. The message says what failed, where, and what to do about it."""
