"""The rules of the Workload API: one bad object or change for each, and the words of our refusal.

They are the rules of scheduling.k8s.io in Kubernetes 1.37: v1beta1, and v1alpha3 for composite groups.
"""

from typing import Any, NamedTuple

from tests.e2e.manifests.objects import (
    FULL,
    JOB,
    REF,
    branch,
    claims,
    composite,
    deep,
    gang,
    template,
    topology,
    tree,
    workload,
)
from tests.e2e.manifests.server import Json

ONE_POLICY = "exactly one of basic and gang must be set"
ONE_MODE = "exactly one of single and all must be set"
ONE_CLAIM = "exactly one of resourceClaimName and resourceClaimTemplateName must be set"
ONE_LIST = "exactly one of podGroupTemplates and compositePodGroupTemplates must be set"
ONE_PRIORITY = "all templates must have the same priorityClassName and priority"
UNIQUE = "names of templates must be unique in the whole tree"
FIXED = "templates cannot be added or removed after creation"
CHILDLESS = "must have at least one child in podGroupTemplates or compositePodGroupTemplates"
DEEP = "the tree of templates may be at most 4 deep"
POSITIVE = "should be greater than or equal to 1"
BOUNDED = "should be less than or equal to 2147483647"
LABEL, SUBDOMAIN, KEY = "must be a DNS label", "must be a DNS subdomain", "must be a label key"
SEGMENT = "must be a path segment"
# The many templates of a tree leave no room for a rule in words, and have a pattern.
PATTERN = "should match '^"


class Bad(NamedTuple):
    """An object that is refused when it is created."""

    sentence: str
    item: Json
    message: str


class Change(NamedTuple):
    """A value at a path under the spec of an object that exists; None takes away what is there."""

    sentence: str
    item: Json
    path: str
    value: Any
    message: str = "immutable"


# --- fields that PodGroups, CompositePodGroups and their templates have in common ------------------------------------

_POLICY: list[tuple[str, Json, str]] = [
    ("with no variant of the policy", {"schedulingPolicy": {}}, ONE_POLICY),
]
_ANY: list[tuple[str, Json, str]] = [
    ("with no variant of the disruption mode", {"disruptionMode": {}}, ONE_MODE),
    ("with two variants of the disruption mode", {"disruptionMode": {"single": {}, "all": {}}}, ONE_MODE),
    ("with two topology keys", {"schedulingConstraints": topology("a", "b")}, "must have at most 1 item"),
    ("with a topology without key", {"schedulingConstraints": {"topology": [{}]}}, "key: Required value"),
    ("with a priority too small", {"priority": -(2**31) - 1}, "should be greater than or equal to -2147483648"),
    ("with a priority of the system", {"priority": 1000000001}, "should be less than or equal to 1000000000"),
]
_FORMATS: list[tuple[str, Json, str]] = [
    ("with a topology key that is empty", {"schedulingConstraints": topology("")}, "should be at least 1 chars long"),
    ("with a topology key of two words", {"schedulingConstraints": topology("not a key")}, KEY),
    ("with a topology key in capitals", {"schedulingConstraints": topology("Example.com/rack")}, KEY),
    ("with a topology key of two slashes", {"schedulingConstraints": topology("a/b/c")}, KEY),
    ("with a topology key of 64 characters", {"schedulingConstraints": topology("a" * 64)}, KEY),
    ("with a priority class in capitals", {"priorityClassName": "High"}, SUBDOMAIN),
]
_LONG_PREFIX: Json = {"schedulingConstraints": topology("a" * 254 + "/rack")}
_GROUP: list[tuple[str, Json, str]] = [
    *_POLICY,
    *_ANY,
    ("with two variants of the policy", {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}, ONE_POLICY),
    ("with no minCount", {"schedulingPolicy": {"gang": {}}}, "minCount: Required value"),
    ("with a minCount of 0", {"schedulingPolicy": {"gang": {"minCount": 0}}}, POSITIVE),
    ("with a minCount in words", {"schedulingPolicy": {"gang": {"minCount": "four"}}}, "must be of type integer"),
    ("with a minCount too large", {"schedulingPolicy": {"gang": {"minCount": 2**31}}}, BOUNDED),
    ("with five claims", {"resourceClaims": claims(*"abcde")}, "must have at most 4 items"),
    ("with two claims of one name", {"resourceClaims": claims("a", "a")}, "Duplicate value"),
    ("with a claim of nothing", {"resourceClaims": [{"name": "a"}]}, ONE_CLAIM),
    (
        "with a claim of two things",
        {"resourceClaims": [{"name": "a", "resourceClaimName": "b", "resourceClaimTemplateName": "c"}]},
        ONE_CLAIM,
    ),
    ("with a claim without name", {"resourceClaims": [{"resourceClaimName": "b"}]}, "name: Required value"),
]
_GROUP_FORMATS: list[tuple[str, Json, str]] = [
    *_FORMATS,
    ("with a claim named with a dot", {"resourceClaims": claims("a.b")}, LABEL),
    ("with a claim of a name in capitals", {"resourceClaims": [{"name": "a", "resourceClaimName": "B"}]}, SUBDOMAIN),
    (
        "with a claim of a template in capitals",
        {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "B"}]},
        SUBDOMAIN,
    ),
]
_COMPOSITE: list[tuple[str, Json, str]] = [
    *_POLICY,
    *_ANY,
    ("with two variants of the policy", {"schedulingPolicy": {"basic": {}, "gang": {"minGroupCount": 1}}}, ONE_POLICY),
    ("with no minGroupCount", {"schedulingPolicy": {"gang": {}}}, "minGroupCount: Required value"),
    ("with a minGroupCount of 0", {"schedulingPolicy": {"gang": {"minGroupCount": 0}}}, POSITIVE),
    ("with a minGroupCount too large", {"schedulingPolicy": {"gang": {"minGroupCount": 2**31}}}, BOUNDED),
]
_REFERENCES: list[tuple[str, Json, str]] = [
    ("whose reference has no template", {"workloadRef": {"workloadName": "w"}}, "templateName: Required value"),
    ("whose reference has no Workload", {"workloadRef": {"templateName": "t"}}, "workloadName: Required value"),
    ("whose template is named with a dot", {"workloadRef": {**REF, "templateName": "a.b"}}, LABEL),
    ("whose template's name is long", {"workloadRef": {**REF, "templateName": "a" * 64}}, "may not be more than 63"),
    ("whose Workload is in capitals", {"workloadRef": {**REF, "workloadName": "W"}}, SUBDOMAIN),
    ("whose Workload's name is long", {"workloadRef": {**REF, "workloadName": "a" * 254}}, "may not be more than 253"),
    ("whose parent is in capitals", {"workloadRef": REF, "parentCompositePodGroupName": "C"}, SUBDOMAIN),
]


def _pattern(message: str) -> str:
    return PATTERN if message in {LABEL, SUBDOMAIN, KEY} else message


def _without(item: Json, field: str) -> Json:
    return {**item, "spec": {name: value for name, value in item["spec"].items() if name != field}}


def _bad_template(name: str) -> Json:
    return {**template(), "name": name}


BAD_GROUPS = [
    *(Bad(f"a PodGroup {how}", gang(**fields), why) for how, fields, why in [*_GROUP, *_GROUP_FORMATS, *_REFERENCES]),
    Bad("a PodGroup with a topology key of a long prefix", gang(**_LONG_PREFIX), KEY),
    Bad("a PodGroup with no policy", _without(gang(), "schedulingPolicy"), "schedulingPolicy: Required value"),
    Bad("a PodGroup with no spec", {"kind": "PodGroup", "metadata": gang()["metadata"]}, "spec: Required value"),
    Bad("a PodGroup with a parent and no Workload", gang(parentCompositePodGroupName="c"), "workloadRef must be set"),
    Bad("a PodGroup named in capitals", gang("G"), "must consist of lower case alphanumeric characters"),
    Bad("a PodGroup of an unknown field", gang(minMember=4), "unknown field"),
    *(
        Bad(f"a CompositePodGroup {how}", composite(**fields), why)
        for how, fields, why in [*_COMPOSITE, *_FORMATS, *_REFERENCES]
    ),
    Bad("a CompositePodGroup with a topology key of a long prefix", composite(**_LONG_PREFIX), KEY),
    Bad("a CompositePodGroup with no Workload", _without(composite(), "workloadRef"), "workloadRef: Required value"),
    Bad("a CompositePodGroup with no policy", _without(composite(), "schedulingPolicy"), "schedulingPolicy: Required"),
    Bad("a CompositePodGroup named in capitals", composite("C"), "must consist of lower case alphanumeric characters"),
    Bad("a CompositePodGroup with claims", composite(resourceClaims=claims("gpu")), "unknown field"),
]

BAD_TEMPLATES = [
    *(Bad(f"a template {how}", workload(template(**fields)), why) for how, fields, why in _GROUP),
    *(Bad(f"a template {how}", workload(template(**fields)), _pattern(why)) for how, fields, why in _GROUP_FORMATS),
    *(Bad(f"a template at the bottom {how}", tree(deep(3, template(**fields))), why) for how, fields, why in _GROUP),
    *(
        Bad(f"a composite template {how}", tree(branch("c", template(), **fields)), why)
        for how, fields, why in _COMPOSITE
    ),
    *(
        Bad(f"a composite template below another {how}", tree(branch("a", branch("b", template(), **fields))), why)
        for how, fields, why in _COMPOSITE
    ),
    *(
        Bad(f"a composite template {how}", tree(branch("c", template(), **fields)), _pattern(why))
        for how, fields, why in _FORMATS
    ),
    Bad("a template with a topology key of a long prefix", workload(template(**_LONG_PREFIX)), "253 characters"),
    Bad("a template with no name", workload({"schedulingPolicy": {"basic": {}}}), "name: Required value"),
    Bad("a template with an empty name", workload(_bad_template("")), LABEL),
    Bad("a template named with a dot", workload(_bad_template("a.b")), LABEL),
    Bad("a template with a long name", workload(_bad_template("a" * 64)), "may not be more than 63"),
    Bad("a template with no policy", workload({"name": "t"}), "schedulingPolicy: Required value"),
    Bad("a composite template named with a dot", tree(branch("a.b", template())), LABEL),
    Bad(
        "a composite template with no policy", tree({"name": "c", "podGroupTemplates": [template()]}), "Required value"
    ),
]


def _many(count: int) -> list[Json]:
    return [template(f"t{number}") for number in range(count)]


BAD_WORKLOADS = [
    Bad("a Workload named in capitals", workload(template(), name="W"), "must consist of lower case alphanumeric"),
    Bad("a Workload with no spec", {"kind": "Workload", "metadata": {"name": "w"}}, "spec: Required value"),
    Bad("a Workload with no list", {**workload(), "spec": {}}, ONE_LIST),
    Bad("a Workload with an empty list", workload(), ONE_LIST),
    Bad("a Workload with two empty lists", tree(podGroupTemplates=[]), ONE_LIST),
    Bad("a Workload with both lists", tree(branch("c", template("a")), podGroupTemplates=[template("b")]), ONE_LIST),
    Bad("a Workload with nine templates", workload(*_many(9)), "must have at most 8 items"),
    Bad("a Workload with nine composite templates", tree(*(branch(f"c{t['name']}", t) for t in _many(9))), "at most 8"),
    Bad("a composite template with nine templates", tree(branch("c", *_many(9))), "must have at most 8 items"),
    Bad(
        "a composite template with nine composite templates",
        tree(branch("c", *(branch(f"c{t['name']}", t) for t in _many(9)))),
        "must have at most 8 items",
    ),
    Bad("a composite template without children", tree(branch("c")), CHILDLESS),
    Bad("a composite template with two empty lists", tree(branch("c", podGroupTemplates=[])), CHILDLESS),
    Bad(
        "a composite template at the bottom without children",
        tree(branch("a", branch("b", compositePodGroupTemplates=[branch("c")]))),
        CHILDLESS,
    ),
    Bad("a tree five deep", tree(deep(4, template())), DEEP),
    Bad("two templates of one name", workload(template("t"), template("t")), "Duplicate value"),
    Bad(
        "two composite templates of one name", tree(branch("c", template("a")), branch("c", template("b"))), "Duplicate"
    ),
    Bad("two templates of one name in one composite", tree(branch("c", template("t"), template("t"))), "Duplicate"),
    Bad(
        "two templates of one name in two composites",
        tree(branch("a", template("t")), branch("b", template("t"))),
        UNIQUE,
    ),
    Bad("a template named as the composite above it", tree(branch("c", template("c"))), UNIQUE),
    Bad("a composite template named as the one above it", tree(branch("c", branch("c", template()))), UNIQUE),
    Bad(
        "a template at the bottom named as one at the top",
        tree(deep(3, template("t")), branch("t", template())),
        UNIQUE,
    ),
    Bad("two priorities side by side", workload(template("a", priority=1), template("b", priority=2)), ONE_PRIORITY),
    Bad("a priority and none", workload(template("a", priority=1), template("b")), ONE_PRIORITY),
    Bad(
        "two classes",
        workload(template("a", priorityClassName="x"), template("b", priorityClassName="y")),
        ONE_PRIORITY,
    ),
    Bad("a class and none", workload(template("a", priorityClassName="x"), template("b")), ONE_PRIORITY),
    Bad(
        "two priorities of composites",
        tree(branch("a", template("t")), branch("b", template("u", priority=1), priority=1)),
        ONE_PRIORITY,
    ),
    Bad("a template without the priority above it", tree(branch("c", template(), priority=1)), ONE_PRIORITY),
    Bad(
        "a template with another class than above it",
        tree(branch("c", template(priorityClassName="x"), priorityClassName="y")),
        ONE_PRIORITY,
    ),
    Bad("a priority at the bottom only", tree(deep(3, template(priority=1))), ONE_PRIORITY),
    Bad(
        "a composite with another class than above it",
        tree(branch("a", branch("b", template()), priorityClassName="x")),
        ONE_PRIORITY,
    ),
    Bad("a controller without name", workload(template(), controllerRef={"kind": "Job"}), "name: Required value"),
    Bad("a controller without kind", workload(template(), controllerRef={"name": "train"}), "kind: Required value"),
    *(
        Bad(f"a controller of {field} {value!r}", workload(template(), controllerRef={**JOB, field: value}), why)
        for field in ("kind", "name")
        for value, why in [
            ("a/b", SEGMENT),
            (".", SEGMENT),
            ("..", SEGMENT),
            ("a%b", SEGMENT),
            ("", "at least 1 chars"),
        ]
    ),
    Bad("a controller of a bad API group", workload(template(), controllerRef={**JOB, "apiGroup": "Batch"}), SUBDOMAIN),
]

BAD = [*BAD_GROUPS, *BAD_TEMPLATES, *BAD_WORKLOADS]

# --- changes ---------------------------------------------------------------------------------------------------------

_WHOLE = gang("whole", workloadRef=REF, parentCompositePodGroupName="c", **FULL)
_BARE = gang("bare")
_BASIC = gang("basic", schedulingPolicy={"basic": {}})
_WHOLE_COMPOSITE = composite("whole", parentCompositePodGroupName="c", **FULL)
_BARE_COMPOSITE = composite("bare")
_PAIR = workload(template("a", **FULL), template("b", **FULL), name="pair", controllerRef=JOB)
_PLAIN = workload(template("a"), name="plain")
_TREE = tree(
    branch("a", branch("b", branch("c", template("t", **FULL), **FULL), **FULL), **FULL),
    name="tree",
)
_PLAIN_TREE = tree(deep(3, template()), name="plain-tree")
_AT = {1: "compositePodGroupTemplates.0", 3: ".".join(["compositePodGroupTemplates.0"] * 3)}

# The field, another value for it.
_FROZEN: list[tuple[str, Any]] = [
    ("schedulingConstraints", topology("other")),
    ("disruptionMode", {"single": {}}),
    ("priorityClassName", "low"),
    ("priority", 5),
]
_PLACES: list[tuple[str, Json, Json, str, list[tuple[str, Any]]]] = [
    ("a template", _PAIR, _PLAIN, "podGroupTemplates.0.", _FROZEN),
    ("a template at the bottom", _TREE, _PLAIN_TREE, f"{_AT[3]}.podGroupTemplates.0.", _FROZEN),
    ("a composite template", _TREE, _PLAIN_TREE, f"{_AT[1]}.", _FROZEN),
    ("a composite template at the bottom", _TREE, _PLAIN_TREE, f"{_AT[3]}.", _FROZEN),
]
_REFERENCE = {"workloadRef": {**REF, "templateName": "other"}, "parentCompositePodGroupName": "other"}


def _later(place: str, bare: Json, path: str, frozen: list[tuple[str, Any]]) -> list[Change]:
    """A priority may be filled in later, and the disruption mode is there already: neither is among these."""
    fields = [(field, value) for field, value in frozen if field not in {"priority", "disruptionMode"}]
    return [Change(f"{place} given its {field} later", bare, f"{path}{field}", value) for field, value in fields]


REFUSED = [
    *(
        Change(f"a PodGroup's {field}, another", _WHOLE, field, value)
        for field, value in [*_FROZEN, *_REFERENCE.items()]
    ),
    *(Change(f"a PodGroup's {field}, none", _WHOLE, field, None) for field, _ in _FROZEN if field != "disruptionMode"),
    Change("a PodGroup's parent, none", _WHOLE, "parentCompositePodGroupName", None),
    Change("a PodGroup's Workload, none", gang("made", workloadRef=REF), "workloadRef", None),
    *_later("a PodGroup", _BARE, "", [*_FROZEN, ("workloadRef", REF)]),
    Change("a PodGroup given a parent later", gang("made", workloadRef=REF), "parentCompositePodGroupName", "c"),
    Change("a gang made basic", _BARE, "schedulingPolicy", {"basic": {}}),
    Change("a basic group made a gang", _BASIC, "schedulingPolicy", {"gang": {"minCount": 2}}),
    Change("a gang made both", _BARE, "schedulingPolicy.basic", {}, ONE_POLICY),
    Change("a gang of nobody", _BARE, "schedulingPolicy.gang.minCount", 0, POSITIVE),
    *(
        Change(f"a CompositePodGroup's {field}, another", _WHOLE_COMPOSITE, field, value)
        for field, value in [*_FROZEN, *_REFERENCE.items()]
    ),
    *(
        Change(f"a CompositePodGroup's {field}, none", _WHOLE_COMPOSITE, field, None)
        for field in ("schedulingConstraints", "priorityClassName", "priority", "parentCompositePodGroupName")
    ),
    *_later("a CompositePodGroup", _BARE_COMPOSITE, "", [*_FROZEN, ("parentCompositePodGroupName", "c")]),
    Change("a CompositePodGroup made basic", _BARE_COMPOSITE, "schedulingPolicy", {"basic": {}}),
    Change("a CompositePodGroup's minGroupCount", _BARE_COMPOSITE, "schedulingPolicy.gang.minGroupCount", 3),
    *(
        Change(f"{place}'s {field}, another", item, f"{path}{field}", value)
        for place, item, _, path, frozen in _PLACES
        for field, value in [*frozen, ("schedulingPolicy", {"basic": {}})]
    ),
    *(
        Change(f"{place}'s {field}, none", item, f"{path}{field}", None)
        for place, item, _, path, frozen in _PLACES
        for field, _ in frozen
    ),
    *(change for place, _, bare, path, frozen in _PLACES for change in _later(place, bare, path, frozen)),
    *(
        Change(f"{place} given its {field} later", bare, f"{path}{field}", value)
        for place, _, bare, path, _ in _PLACES
        for field, value in (("priority", 5), ("disruptionMode", {"all": {}}))
    ),
    Change("a Workload's controller, another", _PAIR, "controllerRef.name", "other"),
    Change("a Workload's controller, none", _PAIR, "controllerRef", None),
    Change("a Workload given a controller later", _PLAIN, "controllerRef", JOB),
    Change("a template taken away", _PAIR, "podGroupTemplates", [template("a", **FULL)], FIXED),
    Change("a template added", _PLAIN, "podGroupTemplates", [template("a"), template("b")], FIXED),
    Change("a template renamed", _PLAIN, "podGroupTemplates.0.name", "b", FIXED),
    Change(
        "a composite template added",
        _PLAIN_TREE,
        "compositePodGroupTemplates",
        [deep(3, template()), branch("b", template("u"))],
        FIXED,
    ),
    Change("a composite template renamed", _PLAIN_TREE, f"{_AT[1]}.name", "b", FIXED),
    Change(
        "a template at the bottom added", _PLAIN_TREE, f"{_AT[3]}.podGroupTemplates", [template(), template("u")], FIXED
    ),
    Change("a template at the bottom renamed", _PLAIN_TREE, f"{_AT[3]}.podGroupTemplates.0.name", "u", FIXED),
    Change(
        "the first template beside a composite one", _PLAIN_TREE, f"{_AT[1]}.podGroupTemplates", [template("u")], FIXED
    ),
    Change("the last composite template taken away", _PLAIN_TREE, f"{_AT[1]}.compositePodGroupTemplates", [], FIXED),
]

ALLOWED = [
    Change("a PodGroup's minCount", _WHOLE, "schedulingPolicy.gang.minCount", 7),
    Change("a template's minCount", _PAIR, "podGroupTemplates.0.schedulingPolicy.gang.minCount", 7),
    Change("a minCount at the bottom", _TREE, f"{_AT[3]}.podGroupTemplates.0.schedulingPolicy.gang.minCount", 7),
    Change("a template's minGroupCount", _TREE, f"{_AT[1]}.schedulingPolicy.gang.minGroupCount", 7),
    Change("a minGroupCount at the bottom", _TREE, f"{_AT[3]}.schedulingPolicy.gang.minGroupCount", 7),
    Change("the order of the templates", _PAIR, "podGroupTemplates", [template("b", **FULL), template("a", **FULL)]),
]

_GOOD = [
    _WHOLE,
    _BASIC,
    composite("basic", schedulingPolicy={"basic": {}}),
    _WHOLE_COMPOSITE,
    workload(*_many(8), name="eight", controllerRef=JOB),
    _PAIR,
    _TREE,
]
# Of a name that no stored object has.
GOOD = [{**item, "metadata": {**item["metadata"], "name": "good"}} for item in _GOOD]

_CLAIMS = [{"name": "gpu", "resourceClaimName": "mine"}, *claims("a", "b", "c")]
CLAIMING = [
    gang("claiming", resourceClaims=_CLAIMS),
    workload(template(resourceClaims=_CLAIMS), name="claiming"),
    tree(deep(3, template(resourceClaims=_CLAIMS)), name="claiming"),
]
"""Groups that share ResourceClaims."""

# --- status ----------------------------------------------------------------------------------------------------------


class BadStatus(NamedTuple):
    """A status that an object is not given."""

    sentence: str
    item: Json
    status: Json
    message: str


CONDITION: Json = {
    "type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable", "message": "NoCapacity",
    "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
}  # fmt: skip
_BAD_CONDITIONS: list[tuple[str, list[Json], str]] = [
    ("a condition without reason", [{**CONDITION, "reason": ""}], "should be at least 1 chars long"),
    ("a condition with a reason of two words", [{**CONDITION, "reason": "a b"}], "should match"),
    ("a condition neither true nor false", [{**CONDITION, "status": "Maybe"}], "Unsupported value"),
    ("a condition of no type", [{**CONDITION, "type": ""}], "must be a qualified name"),
    ("a condition of a negative generation", [{**CONDITION, "observedGeneration": -1}], "greater than or equal to 0"),
    ("a condition twice", [CONDITION, CONDITION], "Duplicate value"),
]
_BAD_CLAIMS: list[tuple[str, list[Json], str]] = [
    ("a claim that the spec does not have", [{"name": "tpu"}], "must name claims of spec.resourceClaims"),
    ("a claim twice", [{"name": "gpu"}, {"name": "gpu"}], "Duplicate value"),
    ("a claim of a name in capitals", [{"name": "gpu", "resourceClaimName": "B"}], SUBDOMAIN),
]
_WATCHED = gang("watched", workloadRef=REF)

BAD_STATUS = [
    *(
        BadStatus(f"{item['kind']}: {which}", item, {"conditions": conditions}, why)
        for item in (_WATCHED, composite("watched"))
        for which, conditions, why in _BAD_CONDITIONS
    ),
    *(
        BadStatus(f"PodGroup: {which}", _WATCHED, {"resourceClaimStatuses": statuses}, why)
        for which, statuses, why in _BAD_CLAIMS
    ),
]
