"""Every right of our three accounts, and the story that does not come to its end without it.

A row names rights that serve one purpose, at one API level. Each of them is taken away by itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field

from tests.e2e.roles import stories
from tests.e2e.roles.rights import PROCESSES, Grant
from tests.e2e.roles.stage import RoleStage

EXTENDER, CONTROLLER, SCHEDULER = PROCESSES
NATIVE, OURS = "scheduling.k8s.io", "scheduling.serried.dev"
FOLLOW = "watch list"
_LEASES = "leases.coordination.k8s.io"
_SLICES = "endpointslices.discovery.k8s.io"


@dataclass(frozen=True)
class Row:
    """Rights, and their story."""

    account: str

    verbs: str
    """One or more, with spaces between them."""

    resource: str
    """With its subresource, and its API group behind a dot: ``podgroups/status.scheduling.k8s.io``."""

    story: stories.Story

    _: KW_ONLY

    prepare: Callable[[RoleStage], None] = stories.prepare_nothing
    """The preparation that is done before a right is taken away."""

    name: str = ""
    """The only object that they are about; "" for every one."""

    shown_by: str = ""
    """The verb and the resource whose request is refused without them, where that is another one."""

    flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Flags of the process, each with its value in this story and its usual one."""

    anew: bool = False
    """True if the failure lasts when the rights are back: then the story is told once more."""

    restarts: bool = False
    """True if the process asks at its start only, or remembers for long that it was refused."""

    @property
    def asks_at_start(self) -> bool:
        """Return whether the process has to be started again to ask anew. It keeps the watches that it has."""
        return self.restarts or "watch" in self.verbs.split()

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The rights, in the order in which they are taken away."""
        return tuple(list_rights(self.account, self.verbs, self.resource, self.name))

    def find_shown(self, grant: Grant) -> Grant:
        """Return the right whose request is refused without a right of the row."""
        verb, _, resource = self.shown_by.partition(" ")
        return next(list_rights(self.account, verb, resource)) if resource else grant

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{PROCESSES[self.account]}:", self.verbs, self.resource, self.name)))


def list_rights(account: str, verbs: str, resource: str, name: str = "") -> Iterator[Grant]:
    """The rights that a row names."""
    plural, _, group = resource.partition(".")
    for verb in verbs.split():
        yield Grant(account, verb, group, plural, name)


def _both(group: str) -> tuple[Row, ...]:
    """Return the rows that both levels have, for the kinds of this API group."""
    return (
        Row(EXTENDER, FOLLOW, f"podgroups.{group}", stories.gang_is_bound),
        Row(EXTENDER, FOLLOW, f"workloads.{group}", stories.workload_is_known),
        Row(EXTENDER, FOLLOW, f"compositepodgroups.{group}", stories.tree_is_bound_as_one),
        Row(EXTENDER, "patch", f"podgroups/status.{group}", stories.condition_says_why_a_gang_waits),
        Row(EXTENDER, "patch", f"compositepodgroups/status.{group}", stories.condition_says_why_a_tree_waits),
        Row(CONTROLLER, FOLLOW, f"podgroups.{group}", stories.job_gets_its_group),
        Row(CONTROLLER, FOLLOW, f"workloads.{group}", stories.job_gets_its_group),
        Row(CONTROLLER, "create", f"workloads.{group}", stories.job_gets_its_group),
        Row(CONTROLLER, "create", f"podgroups.{group}", stories.job_gets_its_group),
        Row(CONTROLLER, "patch", f"workloads.{group}", stories.min_count_follows_its_job, prepare=stories.prepare_job),
        Row(CONTROLLER, "patch", f"podgroups.{group}", stories.min_count_follows_its_job, prepare=stories.prepare_job),
        _suspended("workloads", group),
        _suspended("podgroups", group),
    )


def _suspended(plural: str, group: str) -> Row:
    return Row(
        CONTROLLER,
        "delete",
        f"{plural}.{group}",
        stories.objects_go_with_the_pods_of_a_suspended_job,
        prepare=stories.prepare_job,
        flags={"--suspended-jobs": ("delete", "keep")},
    )


def _reviewing(resource: str) -> tuple[Row, ...]:
    extender, controller = stories.reader_sees_the_extender_s_metrics, stories.reader_sees_the_controller_s_metrics
    return (
        Row(EXTENDER, "create", resource, extender, prepare=stories.open_the_extender),
        Row(CONTROLLER, "create", resource, controller, prepare=stories.open_the_controller),
    )


_CREATES_WORKLOADS = f"create workloads.{NATIVE}"

NATIVE_ROWS = (
    *_both(NATIVE),
    Row(EXTENDER, FOLLOW, "nodes", stories.gang_is_bound),
    Row(EXTENDER, FOLLOW, "pods", stories.gang_is_bound),
    Row(EXTENDER, "get", "pods", stories.binding_of_an_unknown_pod_is_an_error),
    *(
        Row(
            EXTENDER,
            FOLLOW,
            f"{what}.resource.k8s.io",
            stories.gang_knows_that_a_class_has_no_devices,
            prepare=stories.prepare_no_devices,
            anew=True,
        )
        for what in ("deviceclasses", "resourceslices", "resourceclaims", "devicetaintrules")
    ),
    Row(EXTENDER, FOLLOW, "jobs.batch", stories.job_is_bound),
    Row(EXTENDER, FOLLOW, "jobsets.jobset.x-k8s.io", stories.job_set_is_one_gang, anew=True),
    Row(EXTENDER, FOLLOW, "leaderworkersets.leaderworkerset.x-k8s.io", stories.replica_is_one_gang, anew=True),
    Row(EXTENDER, "create", "pods/binding", stories.gang_is_bound),
    Row(
        EXTENDER,
        "patch",
        "pods/status",
        stories.victims_say_that_they_go,
        prepare=stories.prepare_low_pods_that_take_long_to_end,
        anew=True,
    ),
    Row(EXTENDER, "delete", "pods", stories.whole_gang_goes_with_one_member, prepare=stories.prepare_whole_gang),
    Row(
        EXTENDER,
        FOLLOW,
        "poddisruptionbudgets.policy",
        stories.budgets_are_known_before_anybody_is_asked,
        prepare=stories.prepare_low_pods_that_may_not_go,
    ),
    Row(
        EXTENDER,
        "create",
        "pods/eviction",
        stories.gang_gets_the_room_of_lower_pods,
        prepare=stories.prepare_low_pods,
        restarts=True,
    ),
    Row(EXTENDER, "create", "events", stories.event_says_why_a_gang_waits, anew=True),
    Row(
        EXTENDER,
        "patch",
        "events",
        stories.event_counts_why_a_gang_waits,
        prepare=stories.prepare_told_gang,
        anew=True,
    ),
    Row(
        EXTENDER,
        "list",
        "nodepools.karpenter.sh",
        stories.node_pools_are_read,
        prepare=stories.prepare_karpenter,
    ),
    Row(EXTENDER, "list", "events", stories.what_an_autoscaler_says_is_told, prepare=stories.prepare_karpenter),
    Row(EXTENDER, FOLLOW, _LEASES, stories.gang_is_bound, name="serried"),
    Row(EXTENDER, "create", "podtemplates", stories.pods_are_known_to_keep_their_group, restarts=True),
    *_reviewing("tokenreviews.authentication.k8s.io"),
    *_reviewing("subjectaccessreviews.authorization.k8s.io"),
    Row(
        CONTROLLER,
        FOLLOW,
        "pods",
        stories.deleted_group_goes_with_its_last_pod,
        prepare=stories.prepare_group_of_one,
    ),
    Row(CONTROLLER, FOLLOW, "jobs.batch", stories.job_gets_its_group),
    Row(CONTROLLER, FOLLOW, "jobsets.jobset.x-k8s.io", stories.job_set_gets_its_group),
    Row(CONTROLLER, FOLLOW, "leaderworkersets.leaderworkerset.x-k8s.io", stories.replica_gets_its_group),
    Row(CONTROLLER, "update", "jobs/finalizers.batch", stories.job_gets_its_group, shown_by=_CREATES_WORKLOADS),
    Row(
        CONTROLLER,
        "update",
        "jobsets/finalizers.jobset.x-k8s.io",
        stories.job_set_gets_its_group,
        shown_by=_CREATES_WORKLOADS,
    ),
    Row(
        CONTROLLER,
        "update",
        "leaderworkersets/finalizers.leaderworkerset.x-k8s.io",
        stories.replica_gets_its_group,
        shown_by=_CREATES_WORKLOADS,
    ),
    Row(CONTROLLER, "create", "events", stories.event_says_what_was_made_for_a_job, anew=True),
    Row(
        CONTROLLER,
        "create",
        _LEASES,
        stories.job_gets_its_group,
        prepare=stories.prepare_no_lease_of_the_controller,
        restarts=True,
    ),
    *(
        Row(CONTROLLER, verb, _LEASES, stories.job_gets_its_group, name="serried-controller", restarts=True)
        for verb in ("get", "update")
    ),
    *(
        Row(SCHEDULER, verb, _LEASES, stories.gang_is_bound, name="serried", restarts=True)
        for verb in ("get", "update")
    ),
)
"""Told where the cluster's own API serves groups, and the controllers of JobSet and LeaderWorkerSet are at work."""

FALLBACK_ROWS = (
    Row(
        EXTENDER,
        "get",
        "configmaps",
        stories.cluster_autoscaler_is_found,
        prepare=stories.prepare_cluster_autoscaler,
        name="cluster-autoscaler-status",
    ),
    *(
        Row(EXTENDER, verb, "provisioningrequests.autoscaling.x-k8s.io", story, prepare=prepare)
        for verb, story, prepare in (
            ("create", stories.provisioning_request_is_made_for_a_gang, stories.prepare_cluster_autoscaler),
            ("get", stories.refused_provisioning_request_is_told, stories.prepare_provisioning_request),
            ("delete", stories.provisioning_request_goes_with_its_gang, stories.prepare_provisioning_request),
        )
    ),
    *_both(OURS),
    Row(EXTENDER, "create", f"reservations.{OURS}", stories.gang_is_bound),
    Row(
        EXTENDER,
        "update",
        f"reservations.{OURS}",
        stories.gang_gets_the_room_of_lower_pods_as_it_was_recorded,
        prepare=stories.prepare_low_pods,
        anew=True,
    ),
    Row(EXTENDER, "list", f"reservations.{OURS}", stories.gang_is_bound, restarts=True),
    Row(
        EXTENDER,
        "get",
        f"reservations.{OURS}",
        stories.gang_is_bound_after_a_write_that_failed,
        prepare=stories.prepare_refusal_of_records,
    ),
    Row(EXTENDER, "delete", f"reservations.{OURS}", stories.record_goes_when_a_gang_is_bound),
    Row(EXTENDER, FOLLOW, f"topologylevels.{OURS}", stories.label_of_a_level_is_written),
    Row(EXTENDER, "create", f"topologylevels.{OURS}", stories.table_of_levels_is_made_anew),
    Row(EXTENDER, "patch", f"topologylevels/status.{OURS}", stories.label_of_a_level_is_written),
    Row(EXTENDER, FOLLOW, "topologies.kueue.x-k8s.io", stories.topology_of_kueue_is_read),
    Row(EXTENDER, FOLLOW, "clustertopologybindings.grove.io", stories.binding_of_grove_is_read),
    Row(CONTROLLER, FOLLOW, f"topologylevels.{OURS}", stories.job_that_names_a_level_gets_its_group),
    Row(EXTENDER, "patch", "pods", stories.gang_is_bound),
    Row(
        EXTENDER,
        "patch",
        "nodes",
        stories.nodes_of_the_first_gang_are_kept_from_autoscalers,
        prepare=stories.prepare_full_nodes_and_an_autoscaler,
        restarts=True,
    ),
    *(
        Row(
            EXTENDER,
            FOLLOW,
            what,
            stories.gang_knows_the_nodes_of_its_volume,
            prepare=stories.prepare_volume,
            anew=True,
        )
        for what in ("persistentvolumes", "persistentvolumeclaims")
    ),
    *(
        Row(
            EXTENDER,
            FOLLOW,
            f"{what}.storage.k8s.io",
            stories.gang_knows_that_there_is_no_storage,
            prepare=stories.prepare_no_storage,
            anew=True,
        )
        for what in ("storageclasses", "csistoragecapacities", "csidrivers")
    ),
    Row(
        EXTENDER,
        FOLLOW,
        "csinodes.storage.k8s.io",
        stories.gang_knows_that_nodes_take_no_volume,
        prepare=stories.prepare_limits,
        anew=True,
    ),
    Row(
        EXTENDER,
        FOLLOW,
        "namespaces",
        stories.gang_knows_whom_its_members_mean_by_the_labels_of_namespaces,
        prepare=stories.prepare_member_that_means_a_namespace,
        anew=True,
    ),
    Row(EXTENDER, "patch", "configmaps", stories.members_are_held_by_gates, name="serried-hold", restarts=True),
    Row(EXTENDER, FOLLOW, "podgroups.scheduling.x-k8s.io", stories.their_gang_waits_for_its_quorum, anew=True),
    Row(
        EXTENDER,
        FOLLOW,
        "priorityclasses.scheduling.k8s.io",
        stories.gang_is_bound_with_the_priority_of_its_class,
        prepare=stories.prepare_class,
    ),
    Row(
        CONTROLLER,
        FOLLOW,
        "priorityclasses.scheduling.k8s.io",
        stories.group_is_given_the_priority_of_its_class,
        prepare=stories.prepare_class,
    ),
    *(
        Row(
            CONTROLLER,
            verbs,
            f"compositepodgroups.{OURS}",
            stories.root_is_given_the_priority_of_its_class,
            prepare=stories.prepare_class,
        )
        for verbs in (FOLLOW, "patch")
    ),
    Row(
        CONTROLLER,
        "update",
        f"podgroups/priority.{OURS}",
        stories.group_is_given_the_priority_of_its_class,
        prepare=stories.prepare_class,
        shown_by=f"patch podgroups.{OURS}",
    ),
    Row(
        CONTROLLER,
        "update",
        f"compositepodgroups/priority.{OURS}",
        stories.root_is_given_the_priority_of_its_class,
        prepare=stories.prepare_class,
        shown_by=f"patch compositepodgroups.{OURS}",
    ),
    Row(
        CONTROLLER,
        "patch",
        "events",
        stories.event_counts_the_changes_of_a_job,
        prepare=stories.prepare_resized_job,
        anew=True,
    ),
)
"""Told where our CRDs serve groups, and members are held by gates."""

ELECTION_ROWS = (
    Row(
        EXTENDER,
        "create",
        _LEASES,
        stories.gang_is_bound,
        prepare=stories.prepare_no_lease_of_the_extenders,
        restarts=True,
    ),
    *(
        Row(EXTENDER, verbs, _LEASES, stories.gang_is_bound, name="serried-extender", restarts=True)
        for verbs in ("get", "update", FOLLOW)
    ),
    Row(
        EXTENDER,
        "create",
        _SLICES,
        stories.service_leads_to_the_extender,
        prepare=stories.prepare_no_endpoints,
        restarts=True,
        shown_by=f"patch {_SLICES}",
    ),
    *(
        Row(
            EXTENDER,
            verb,
            _SLICES,
            stories.service_leads_to_the_extender,
            prepare=stories.prepare_no_endpoints,
            name="serried-verbs",
            restarts=True,
        )
        for verb in ("get", "patch")
    ),
)
"""Rows told where extenders have a Lease of their own: the cluster's own scheduler calls the leader."""

_READERS = "tests/e2e/commands/test_readers.py"
_PEOPLE = "tests/e2e/manifests/test_roles.py::test_a_user_with_a_role_in_a_namespace_has_it_for_the_groups_there"

OTHER_ROLES = {
    "serried-debug-reader": f"{_READERS}::test_each_page_that_the_reader_s_role_opens_is_closed_to_others",
    "serried-metrics-reader": f"{_READERS}::test_who_may_look_over_the_network_is_let_in",
    "serried-commands": f"{_READERS}::test_who_lacks_one_right_of_that_role_learns_which",
    "serried-view": _PEOPLE,
    "serried-edit": _PEOPLE,
}
"""The roles of people and of Prometheus, which none of our accounts has, and their stories."""
