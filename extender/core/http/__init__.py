"""The extender protocol: sockets, verbs as handlers, bytes to values and back. Knows no scheduling."""
