"""A fake API server with a sound installation, for tests of ``serried check``."""

from typing import Any

import yaml

from cli.check.checks import DEFINITIONS
from serried import __version__
from tests.support.installations import RACK, SELFCHECK, read_shipped, shipped_installation
from tests.support.pod_proxy import PodProxy, extender_pod
from tests.unit.manifests.shipped import read_all

HOME = "/api/v1/namespaces/serried-system"
ADMISSION = "/apis/admissionregistration.k8s.io"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEPLOYMENT = "/apis/apps/v1/namespaces/serried-system/deployments/serried"


def items(*objects: Any) -> dict[str, Any]:
    """Return a List document of these objects."""
    return {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": list(objects)}


def named(name: str, **fields: Any) -> dict[str, Any]:
    """Return an object of this name in kube-system. ``fields`` are its other fields, such as spec."""
    return {"metadata": {"name": name, "namespace": "kube-system"}, **fields}


def answer_without_mistakes(proxy: PodProxy) -> None:
    """Let the proxy answer like a cluster with the shipped manifests, on which `serried check` finds no mistake."""
    pod = extender_pod("serried-0")
    pod["spec"]["containers"][0]["image"] = "registry.k8s.io/kube-scheduler:v1.37.1"
    pod["spec"]["volumes"] = [{"name": "config", "configMap": {"name": "serried-scheduler-config-abc"}}]
    proxy.answer(f"{HOME}/pods", items(pod))
    text = yaml.safe_dump(read_shipped())
    proxy.answer(f"{HOME}/configmaps/serried-scheduler-config-abc", named("c", data={"scheduler-config.yaml": text}))
    settings = [{"flag": f"--{name}", "value": value} for name, value in shipped_installation().flags.items()]
    proxy.answer_debug("serried-0:8912", "selfcheck", SELFCHECK)
    proxy.answer_debug("serried-0:8912", "config", {"settings": settings})
    proxy.answer_debug("serried-0:8912", "domains", {"keys": [RACK]})
    proxy.answer("/version", {"gitVersion": "v1.37.1"})
    proxy.answer("/api/v1/nodes", items({"metadata": {"name": "n", "labels": {RACK: "r"}}}))
    proxy.answer("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"status": {"allowed": True}})
    proxy.answer("/apis/apps/v1/deployments", items(named("coredns")))
    proxy.answer(ADMISSION, {"versions": [{"groupVersion": "admissionregistration.k8s.io/v1", "version": "v1"}]})
    policies = [each for each in read_all() if each.kind == "ValidatingAdmissionPolicy"]
    served = [{"name": "validatingadmissionpolicies"}]
    proxy.answer(f"{ADMISSION}/v1", {"resources": served})
    proxy.answer(f"{ADMISSION}/v1/validatingadmissionpolicies", items(*(named(each.name) for each in policies)))
    bindings = [named(each.name, spec={"policyName": each.name}) for each in policies]
    proxy.answer(f"{ADMISSION}/v1/validatingadmissionpolicybindings", items(*bindings))
    for kind in ("validating", "mutating"):
        proxy.answer(f"{ADMISSION}/v1/{kind}webhookconfigurations", items())
    for plural in DEFINITIONS:
        release = {"metadata": {"labels": {"app.kubernetes.io/version": __version__}}}
        proxy.answer(f"{CRDS}/{plural}.scheduling.serried.dev", release)
    proxy.answer(DEPLOYMENT, {"metadata": {"name": "serried", "namespace": "serried-system"}})
