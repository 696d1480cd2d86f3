"""``/debug``: what the process knows, for people."""
