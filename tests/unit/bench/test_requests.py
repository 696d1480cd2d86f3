"""The API server's own count of writes."""

from bench.load.requests import parse_writes

METRICS = """# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",resource="pods",subresource="",verb="POST"} 20
apiserver_request_total{code="409",component="apiserver",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="201",component="apiserver",resource="pods",subresource="binding",verb="POST"} 1e+03
apiserver_request_total{code="200",component="apiserver",resource="pods",subresource="",verb="LIST"} 5
apiserver_request_total{code="0",component="apiserver",resource="pods",subresource="",verb="WATCH"} 5
other_total{resource="pods",verb="POST"} 7
"""


def test_writes_are_summed_over_their_answers() -> None:
    assert parse_writes(METRICS) == {"POST pods": 21, "POST pods/binding": 1000}
