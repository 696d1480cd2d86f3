"""The extender protocol over HTTP: sockets, and the verbs as handlers. Nothing here knows about scheduling."""
