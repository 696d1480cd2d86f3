"""Looking at it: ``/debug`` and its page, and other clusters: decisions made again, and gangs that do not exist."""
