"""Another cluster: decisions made again, and gangs that do not exist.

``/debug/snapshot``, ``/debug/whatif``, ``serried replay``, ``serried whatif``.
"""
