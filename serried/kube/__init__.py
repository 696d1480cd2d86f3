"""The client of the Kubernetes API. Only this package opens connections.

`client.ApiClient` sends requests, `reflector.Reflector` lists and watches, `events.EventWriter` writes Events, and
`election.Election` elects the leader.
"""
