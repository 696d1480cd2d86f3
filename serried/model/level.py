"""Where Workloads and PodGroups live, and what the versions of that API call things."""

from dataclasses import dataclass, field
from enum import Enum

from serried.model.disruption import Disruption
from serried.model.group import composite_api_version


class ResizeRule(Enum):
    """How kube-scheduler counts a running pod of which other amounts are granted, or in effect, than are desired."""

    CONTAINERS = "containers"
    """What is the largest for each container, added up: 1.35 and 1.36."""

    SUMS = "sums"
    """The largest of the sums: since 1.37."""

    LARGEST = "largest"
    """The larger of both, where the version is not known."""


@dataclass(frozen=True, slots=True)
class ApiLevel:
    """An API group and version that serves Workloads and PodGroups; ``name`` is ``native`` or ``fallback``."""

    name: str
    group: str
    version: str

    like: str = ""
    """The version whose shape it has; "" for that of its own name."""

    composite_version: str = ""
    """The version of the group in which CompositePodGroups are read; "" for the one that is known."""

    refused: tuple[str, ...] = field(default=(), compare=False)
    """A sentence for each version that the cluster serves, too, and whose shape is unknown."""

    @property
    def api_version(self) -> str:
        """What stands in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}"

    @property
    def composite_api_version(self) -> str:
        """The same of CompositePodGroups: upstream has a version of its own for them."""
        found = f"{self.group}/{self.composite_version}" if self.composite_version else ""
        return found or composite_api_version(self.api_version)

    def of(self, api: str) -> "ApiLevel":
        """Where an object with this ``api`` lives (`PodGroup.api`): here, or beside it."""
        return self.beside or self if api else self

    @property
    def beside(self) -> "ApiLevel | None":
        """The level whose objects are read, too: gangs may have begun there before the cluster turned to this one.

        Beside a native level that is the fallback. What was native cannot be read any more once the API server does not
        serve it.
        """
        return None if self.name == FALLBACK.name else FALLBACK

    @property
    def read(self) -> frozenset[str]:
        """The apiVersions at which groups are read, those among them whose objects are served at another one by now."""
        apis = {self.api_version} | ({self.beside.api_version} if self.beside is not None else set())
        if self.group == NATIVE_GROUP and self.shape in _ONE_STORAGE:
            apis.update(f"{NATIVE_GROUP}/{version}" for version in _ONE_STORAGE)
        return frozenset(apis)

    @property
    def shape(self) -> str:
        """The known version whose fields its objects have; whatever depends on the version asks for this."""
        return self.like or self.version

    @property
    def obstacle(self) -> str:
        """Why the cluster's own PodGroups cannot be read; "" where they can, or none are served."""
        return "" if self.name == NATIVE.name else "; ".join(self.refused)

    @property
    def inline(self) -> bool:
        """Whether PodGroups are no objects but parts of a Workload, and pods name both."""
        return self.shape == V1ALPHA1

    @property
    def count_mutable(self) -> bool:
        """Whether minCount can be changed in a Workload and a PodGroup."""
        return self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def resize_rule(self) -> ResizeRule:
        """How the cluster's kube-scheduler counts a pod that is being resized, as far as the API tells its version."""
        if self.group != NATIVE_GROUP:
            return ResizeRule.LARGEST
        return ResizeRule.CONTAINERS if self.shape in {V1ALPHA1, V1ALPHA2} else ResizeRule.SUMS

    @property
    def nests(self) -> bool:
        """Whether there are CompositePodGroups beside its PodGroups."""
        return self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def has_preemption(self) -> bool:
        """Whether its PodGroups may say ``preemptionPolicy``, as in 1.37 with the gate PodGroupPreemptionPolicy."""
        return self.group == NATIVE_GROUP and self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def condition(self) -> str:
        """The type of the PodGroup's condition that says whether the gang has been scheduled."""
        return "PodGroupScheduled" if self.shape == V1ALPHA2 else "PodGroupInitiallyScheduled"


COMPOSITE_CONDITION = "CompositePodGroupInitiallyScheduled"
"""The same of a CompositePodGroup."""

V1ALPHA1 = "v1alpha1"
"""Served by 1.35 only: Workloads contain their PodGroups."""

V1ALPHA2 = "v1alpha2"
"""Served by 1.36 only: a PodGroup names its Workload by ``podGroupTemplateRef`` there."""

V1ALPHA3 = "v1alpha3"
"""Served by 1.37 beside v1beta1, with the same fields, and with CompositePodGroups."""

V1BETA1 = "v1beta1"

V1ALPHA2_DISRUPTION = {Disruption.SINGLE: "Pod", Disruption.ALL: "PodGroup"}
"""What is a union of empty objects elsewhere is a word there."""

NATIVE_GROUP = "scheduling.k8s.io"

_ONE_STORAGE = frozenset({"v1", V1BETA1, V1ALPHA3})
"""Versions of one and the same stored objects: what was created as one of them is served as any other."""

NATIVE_LEVELS = tuple(ApiLevel("native", NATIVE_GROUP, version) for version in (V1BETA1, V1ALPHA3, V1ALPHA2, V1ALPHA1))
"""The versions of the cluster's own API (gate GenericWorkload) that are known by name. 1.37 has the first two."""

NATIVE = NATIVE_LEVELS[0]

FALLBACK = ApiLevel("fallback", "scheduling.serried.dev", V1BETA1)
"""Serried's CRDs of the shape of v1beta1. Reservations live here at either level."""
