"""The stand-in of a kubelet runs what is shipped: the containers in their order, with the probes of the manifests."""

from bench.failover.pods import Probe, read_pod


def test_the_pair_is_read_as_it_is_shipped() -> None:
    extender, scheduler = read_pod("serried.yaml", "serried")
    assert (extender.name, extender.sidecar) == ("extender", True)
    assert extender.startup == Probe("/livez/filter", 8912, period=1, timeout=5, failures=600)
    assert extender.liveness == Probe("/livez", 8912, period=10, timeout=5)
    assert (scheduler.name, scheduler.sidecar) == ("scheduler", False)
    assert scheduler.liveness == Probe("/livez/pair", 8912, period=1, timeout=1, failures=6)
    assert scheduler.startup == Probe("/livez", 10259, scheme="https", period=1, failures=120)


def test_the_controller_is() -> None:
    (controller,) = read_pod("controller.yaml", "serried-controller")
    assert controller.readiness == Probe("/readyz", 8913, period=5, timeout=5)
    assert "--lease=serried-system/serried-controller" in controller.arguments
