"""The extender protocol over HTTP: a server (`server`), and the handlers of kube-scheduler's four calls (`verbs`).

Nothing here knows about scheduling. `extender.process` opens a `server.Listener` with the routes of `verbs.Verbs`.
"""
