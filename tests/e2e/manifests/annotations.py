"""Annotations of Jobs, which the policy of Jobs refuses or lets through."""

import pytest

from tests.e2e.manifests.server import GROUP, KUSTOMIZE, Json

POLICY, TOPOLOGY, DISRUPTION = (f"{GROUP}/{name}" for name in ("gang-policy", "required-topology", "disruption-mode"))
PREFERRED, PACKING, EXCLUSIVE = (f"{GROUP}/{name}" for name in ("preferred-topology", "packing", "exclusive"))
POLICIES = tuple(f"--filename={KUSTOMIZE / 'policies' / name}.yaml" for name in ("annotations", "job-gang-policy"))

WRONG = [
    pytest.param(TOPOLOGY, "", 'Invalid value: "": must be the key of a node label', id="an empty key"),
    pytest.param(TOPOLOGY, "my rack", 'Invalid value: "my rack": must be the key', id="a key of two words"),
    pytest.param(TOPOLOGY, "Example.com/rack", "must be the key of a node label", id="a key with a domain in capitals"),
    pytest.param(TOPOLOGY, "a/b/c", "must be the key of a node label", id="a key of two slashes"),
    pytest.param(PREFERRED, "", 'Invalid value: "": must be up to 4 different keys', id="no level"),
    pytest.param(PREFERRED, "rack,", 'Invalid value: "rack,": must be up to 4', id="a comma too many"),
    pytest.param(PREFERRED, "rack,my rack", "must be up to 4 different keys", id="a level of two words"),
    pytest.param(PREFERRED, "rack=30", "must be up to 4 different keys", id="a wait without a unit"),
    pytest.param(PREFERRED, "rack, rack=5s", "must be up to 4 different keys", id="a level twice"),
    pytest.param(PREFERRED, "a,b,c,d,e", "must be up to 4 different keys", id="five levels"),
    pytest.param(PACKING, "Spread", 'Unsupported value: "Spread": supported values: "pack"', id="a packing misspelt"),
    pytest.param(EXCLUSIVE, "yes", 'Unsupported value: "yes": supported values: "true"', id="neither true nor false"),
    pytest.param(DISRUPTION, "", 'Unsupported value: "": supported values: "single", "all"', id="an empty mode"),
    pytest.param(
        DISRUPTION, "All", 'Unsupported value: "All": supported values: "single", "all"', id="a mode misspelt"
    ),
]
WRONG_POLICY = [
    pytest.param(POLICY, "", "Required value: JobAsGang or NoGang", id="an empty policy"),
    pytest.param(
        POLICY,
        "jobAsGang",
        'Unsupported value: "jobAsGang": supported values: "JobAsGang", "NoGang"',
        id="a policy misspelt",
    ),
]
RIGHT = [
    pytest.param({TOPOLOGY: "topology.kubernetes.io/zone"}, id="a key with a domain"),
    pytest.param({TOPOLOGY: "rack", EXCLUSIVE: "true"}, id="a rack alone"),
    pytest.param({TOPOLOGY: "rack"}, id="a key without domain"),
    pytest.param({PREFERRED: "rack=30s, example.com/block=5m,zone"}, id="levels with waits"),
    pytest.param({PREFERRED: "a,b,c,d", PACKING: "spread"}, id="four levels, spread"),
    pytest.param({PACKING: "pack"}, id="packed"),
    pytest.param({DISRUPTION: "single"}, id="single"),
    pytest.param({DISRUPTION: "all", POLICY: "JobAsGang"}, id="all, and a gang"),
    pytest.param({POLICY: "NoGang"}, id="no gang"),
    pytest.param({"example.com/required-topology": "my rack"}, id="an annotation of somebody else"),
]


def suspended(name: str, annotations: Json) -> Json:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
    spec = {"suspend": True, "parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
