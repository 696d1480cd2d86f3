"""Observed installations for `serried check`: the shipped one, and functions that make mistakes in it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import yaml

from cli.check.autoscalers import Autoscalers
from cli.check.checks import DEFINITIONS
from cli.check.observed import Observed, decode_scheduler_config
from serried import __version__
from serried.settings import describe_settings, extender_settings
from tests.unit.manifests.shipped import MANIFESTS, read_all

Mistake = Callable[[Observed], Observed]
"""A function that makes one mistake in an installation."""

ZONE = "topology.kubernetes.io/zone"
RACK = "example.com/rack"

SELFCHECK: dict[str, Any] = {
    "active": True,
    "leaseHolder": "serried-0_x",
    "planning": True,
    "obstacle": "",
    "api": {"level": "native", "group": "scheduling.k8s.io", "version": "v1beta1", "podsKeepTheirGroup": True},
    "hold": {"mode": "auto", "way": "filter", "obstacle": "there is no ConfigMap", "heldByFilter": 0},
    "isolation": {"isolated": False, "unmarkedMembers": 0, "examples": []},
    "watches": {"podgroups": {"listed": True, "served": True, "malformed": 0, "silentSeconds": 1.0}},
}


def read_shipped(isolated: str = "off") -> dict[str, Any]:
    """Return the KubeSchedulerConfiguration in the manifests; that of the isolated overlay if ``isolated`` is "on"."""
    folder = "isolated" if isolated == "on" else "scheduler"
    return dict(yaml.safe_load((MANIFESTS / "kustomize" / folder / "scheduler-config.yaml").read_text()))


def shipped_installation(isolated: str = "off") -> Observed:
    """Return what `serried check` observes in a cluster with the manifests applied unchanged."""
    (deployment,) = [each.content for each in read_all() if (each.kind, each.name) == ("Deployment", "serried")]
    containers = deployment["spec"]["template"]["spec"]["initContainers"]
    (arguments,) = [each["args"] for each in containers if each["name"] == "extender"]
    settings = describe_settings(extender_settings([*arguments, f"--isolated={isolated}"], {"POD_NAME": "serried-0"}))
    documents = read_all()
    return Observed(
        config=decode_scheduler_config("shipped", read_shipped(isolated)),
        flags={each.flag.removeprefix("--"): each.value for each in settings},
        selfcheck=SELFCHECK,
        skew_seconds=0.4,
        denied=frozenset(),
        nodes={f"n{number}": {ZONE: f"z{number % 2}", RACK: f"r{number % 4}"} for number in range(12)},
        keys=(RACK,),
        policies=frozenset(each.name for each in documents if each.kind.endswith("AdmissionPolicy")),
        bound_policies=frozenset(
            each.content["spec"]["policyName"] for each in documents if each.kind.endswith("AdmissionPolicyBinding")
        ),
        gate_switch=True,
        autoscalers=Autoscalers(),
        definitions=dict.fromkeys(DEFINITIONS, __version__),
        server_version="v1.37.1",
        scheduler_version="v1.37.1",
    )


def control_plane_installation() -> Observed:
    """Return what is observed if only the extender is installed, and the cluster's own kube-scheduler calls it."""
    folder = MANIFESTS / "kustomize" / "control-plane"
    component = yaml.safe_load((folder / "kustomization.yaml").read_text())
    changes = yaml.safe_load(component["patches"][0]["patch"])
    (arguments,) = [each["value"] for each in changes if each["path"].endswith("/args")]
    told = [each.replace("$(POD_IP)", "10.0.0.1") for each in arguments]
    settings = describe_settings(extender_settings(told, {"POD_NAME": "serried-0"}))
    config = yaml.safe_load((folder / "scheduler-config.yaml").read_text())
    return replace(
        shipped_installation("on"),
        config=decode_scheduler_config("shipped", config),
        flags={each.flag.removeprefix("--"): each.value for each in settings},
    )


def change_config(change: Callable[[dict[str, Any]], object], isolated: str = "off") -> Mistake:
    """Return a Change that changes the scheduler's configuration. ``change`` changes the decoded document in place."""

    def make(seen: Observed) -> Observed:
        document = read_shipped(isolated)
        change(document)
        return replace(seen, config=decode_scheduler_config("changed", document))

    return make


def change_entry(place: int, isolated: str = "off", **fields: Any) -> Mistake:
    """Return a Change that sets fields of an entry of ``extenders``: filter is 0, bind is 1. None removes a field."""

    def change(document: dict[str, Any]) -> None:
        entry = document["extenders"][place]
        entry.update(fields)
        for name in [name for name, value in entry.items() if value is None]:
            del entry[name]

    return change_config(change, isolated)


def set_flag(**flags: str) -> Mistake:
    """Return a Change that gives these flags of the extender other values. Dashes are written as underscores."""
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return lambda seen: replace(seen, flags={**seen.flags, **named})


def change_selfcheck(**said: Any) -> Mistake:
    """Return a Change that replaces these fields of the extender's self-check."""
    return lambda seen: replace(seen, selfcheck={**SELFCHECK, **said})
