"""The checks of ``serried check``, one function for each area, such as `check_nodes` for node labels.

An area is what the option ``--only`` selects. Each function takes the facts in an `Observed` and yields findings,
without I/O.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations, groupby, product
from typing import Any

from cli.check.installed import InstallMethod, Piece
from cli.check.neighbours import GATE_POLICY, check_autoscalers, check_kueue
from cli.check.observed import (
    ELECTING_NEEDS,
    NEEDS,
    Area,
    Entry,
    Finding,
    Need,
    Observed,
    Right,
    SchedulerConfig,
    Severity,
    list_rights,
    read_minor,
)
from serried import __version__
from serried.api.level import FALLBACK, NATIVE, NATIVE_GROUP, NEWEST_MINOR, NEWEST_SCHEDULER_MINOR, OLDEST_MINOR
from serried.api.names import count_things, join_some, read_int, read_map, read_text
from serried.api.preference import LEVELS
from serried.api.resources import MARKERS
from serried.api.topology import LevelTable, Pool
from serried.api.verdict import describe_invalid_tree

POLICIES = {
    "serried-annotations": "mistyped annotations and labels are accepted, but have no effect",
    "serried-controller-groups": "the controller may change and delete any group of users",
    "serried-extender-deletions": "the extender may delete any pod",
    "serried-extender-nodes": "the extender may change any field of nodes",
    "serried-extender-pod-status": "the extender may change any field of a pod's status",
    "serried-extender-pods": "the extender may change any field of pods",
    "serried-job-gang-policy": "users may change annotations of Jobs that run, without effect",
    "serried-pod-group-label": "users may change the group of a pod that waits",
    "serried-reservations": "the administrator of any namespace may create a Reservation that stops all planning",
}
"""The admission policies that each installation needs. The values say what may happen without the policy."""

_PRIORITY_POLICY = "serried-group-priority"
_MARKER_POLICY = "serried-marker"


def check_policies(seen: Observed) -> Iterator[Finding]:
    """Yield a finding for each needed admission policy that does not exist or has no binding.

    Yield nothing if the policies are unknown. Some are needed only with certain flags of the extender, or at one API
    level.
    """
    if seen.policies is None:
        return
    for name, without in POLICIES.items():
        yield from _check_policy(seen, name, without, Severity.WARNING, Piece.POLICIES)
    if (seen.selfcheck or {}).get("api", {}).get("level") == FALLBACK.name:
        without = "any user who creates a PodGroup may give it any priority"
        yield from _check_policy(seen, _PRIORITY_POLICY, without, Severity.WARNING, Piece.POLICIES)
    if seen.flags.get("isolated") == "on":
        without = "members get no markers, so kube-scheduler does not call Serried for them and starts gangs pod by pod"
        yield from _check_policy(seen, _MARKER_POLICY, without, Severity.ERROR, Piece.MARKER)
    if seen.flags.get("hold") == "gate":
        without = "no pod gets the scheduling gate, so the gate holds no gang"
        yield from _check_policy(seen, GATE_POLICY, without, Severity.ERROR, Piece.GATE)


def _check_policy(seen: Observed, name: str, without: str, severity: Severity, piece: Piece) -> Iterator[Finding]:
    fix = seen.method.command_for(piece)
    if name not in (seen.policies or ()):
        yield Finding(severity, Area.POLICIES, name, f"the policy does not exist: {without}", fix)
    elif name not in seen.bound_policies:
        yield Finding(severity, Area.POLICIES, name, f"the policy has no binding: {without}", fix)


def check_cluster(seen: Observed) -> Iterator[Finding]:
    """Yield findings about the versions of Kubernetes and about programs that interfere with Serried.

    These are kube-scheduler's own gang scheduling, autoscalers, Kueue, other gang schedulers and admission webhooks.
    Other findings are about running pods that Serried does not evict, and trees that Kubernetes 1.38 will reject.
    """
    yield from _check_versions(read_minor(seen.server_version), read_minor(seen.scheduler_version), seen.method)
    yield from _check_victims(seen)
    if seen.flags.get("hold") == "gate" and (seen.selfcheck or {}).get("schedulesGangs"):
        what = (
            "its own gang scheduling is on, and holds a whole group while one of its pods has a scheduling gate: a "
            "gang never starts if not all its pods fit"
        )
        fix = "run the extender with --hold=filter"
        yield Finding(Severity.ERROR, Area.CLUSTER, "kube-scheduler", what, fix)
    yield from check_autoscalers(seen)
    yield from check_kueue(seen)
    for where, (what, fix) in seen.neighbours:
        yield Finding(Severity.WARNING, Area.CLUSTER, where, what, fix)
    for tree, why in sorted(read_map(seen.selfcheck or {}, "treesInvalidIn138").items()):
        fix = "before the upgrade to 1.38, create the tree again by its rules (docs/kinds.md); running pods may stay"
        yield Finding(Severity.WARNING, Area.CLUSTER, f"CompositePodGroup {tree}", describe_invalid_tree(why), fix)


def _check_victims(seen: Observed) -> Iterator[Finding]:
    """Yield a warning if preemption is on and pods of schedulers that Serried does not serve run.

    Serried evicts none of them for a gang.
    """
    selfcheck = seen.selfcheck or {}
    count = read_int(read_map(selfcheck, "objects"), "podsOfOtherSchedulers")
    if not count or seen.flags.get("preemption") != "on":
        return
    names = ", ".join(selfcheck.get("schedulers", ()))
    what = (
        f"Serried does not evict {count_things(count, 'running pod')} of other schedulers than {names} for a gang, "
        "whatever its priority, because the other scheduler would use the freed resources first (docs/preemption.md)"
    )
    fix = "set schedulerName: serried in pods that Serried may evict, or install overlays/control-plane"
    yield Finding(Severity.WARNING, Area.CLUSTER, "pods of other schedulers", what, fix)


def _check_versions(server: int | None, scheduler: int | None, method: InstallMethod) -> Iterator[Finding]:
    if server is not None and server < OLDEST_MINOR:
        what = f"1.{server} lacks parts of the API that Serried needs"
        yield Finding(Severity.ERROR, Area.CLUSTER, "Kubernetes", what, f"use 1.{OLDEST_MINOR} or newer")
    if server is not None and server > NEWEST_MINOR:
        what = f"1.{server} is not tested with Serried {__version__}; the newest tested is 1.{NEWEST_MINOR}"
        if server <= NEWEST_SCHEDULER_MINOR:
            what += f", and a pre-release of kube-scheduler 1.{server} beside it (docs/api-levels.md)"
        fix = "look for a newer release of Serried, or try your gangs in a cluster for tests first"
        yield Finding(Severity.WARNING, Area.CLUSTER, "Kubernetes", what, fix)
    if server is None or scheduler is None:
        return
    fix = method.use_scheduler(server)
    if scheduler > server:
        what = f"1.{scheduler} is newer than the API server (1.{server}), which may not serve all that it requests"
        yield Finding(Severity.ERROR, Area.CLUSTER, "kube-scheduler", what, fix)
    elif scheduler < server - 1:
        what = f"1.{scheduler} is more than one minor version older than the API server (1.{server})"
        yield Finding(Severity.WARNING, Area.CLUSTER, "kube-scheduler", what, fix)


DEFINITIONS = ("compositepodgroups", "podgroups", "reservations", "topologylevels", "workloads")
"""The CRDs that each installation needs, by plural name."""

_LEVELS = "topologylevels"
_RECORDS = "reservations"
_SKEW_SECONDS = 2.0
_LOST_SKEW_SECONDS = 10.0
"""Seconds between the clocks of extender and API server above which the finding is an error instead of a warning.

A Lease of 15 s can hardly be held then.
"""

_NEEDED_WATCHES = ("podgroups", "workloads")


EXTENDER_SILENT = "/debug"
"""The value of ``Finding.where`` in the finding that the extender does not answer.

Other findings could not be checked for the same reason. The output then says "see above" instead of repeating it.
"""


def check_extender(seen: Observed) -> Iterator[Finding]:
    """Yield findings about the extender: CRDs, leadership, watches, API level, markers, certificates and clock.

    A marker is the extended resource by which an isolated installation limits the scheduler's calls to members.
    """
    if seen.silence:
        fix = "check that its pod is ready and that you may get pods/proxy, or set --server to its address"
        yield _find(Severity.ERROR, EXTENDER_SILENT, seen.silence, fix)
    yield from _check_definitions(seen)
    if seen.selfcheck is not None:
        yield from _check_leadership(seen.selfcheck, seen.method)
        yield from _check_caches(seen.selfcheck, seen.method)
        yield from _check_holding(seen)
        yield from _check_marked(seen.selfcheck, seen.method)
        yield from _check_certificates(seen.selfcheck)
    if seen.skew_seconds is not None and abs(seen.skew_seconds) > _SKEW_SECONDS:
        severity = Severity.ERROR if abs(seen.skew_seconds) > _LOST_SKEW_SECONDS else Severity.WARNING
        skew = f"{abs(seen.skew_seconds):.0f} s {'ahead of' if seen.skew_seconds > 0 else 'behind'} the API server's"
        what = f"it is {skew}: leadership ends early or does not begin, and forecasts are wrong by as much"
        yield _find(severity, "clock", what, "synchronize the node's clock by NTP (chrony, systemd-timesyncd)")


def _check_definitions(seen: Observed) -> Iterator[Finding]:
    """Yield a finding for each CRD of Serried that is missing or of another release than the extender.

    If the extender does not answer, the CRDs are compared with the release of this command.
    """
    if seen.definitions is None:
        return
    selfcheck, fix = seen.selfcheck or {}, seen.method.command_for(Piece.CRDS)
    release = str(selfcheck.get("version") or __version__)
    is_native = read_text(read_map(selfcheck, "api"), "level") == NATIVE.name
    for plural in DEFINITIONS:
        found, where = seen.definitions.get(plural), f"CRD {plural}.{FALLBACK.group}"
        if found is None and plural == _RECORDS:
            yield _find(
                Severity.ERROR, where, "the CRD does not exist: Serried can record no plan, so no gang starts", fix
            )
        elif found is None and plural == _LEVELS:
            what = "the CRD does not exist: Jobs that name a level of the topology wait"
            yield _find(Severity.WARNING, where, what, fix)
        elif found is None:
            severity = Severity.WARNING if is_native else Severity.ERROR
            yield _find(severity, where, "the CRD does not exist: the API server does not serve these objects", fix)
        elif _read_release(found) > _read_release(release):
            what = f"the CRD is of release {found}, but the extender of {release}: an upgrade was not finished"
            yield _find(Severity.WARNING, where, what, f"upgrade Serried to {found}")
        elif found != release:
            what = f"its release is {found or 'unknown'}, not {release}: the API server drops fields that it lacks"
            yield _find(Severity.ERROR, where, what, fix)


def _read_release(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _check_leadership(selfcheck: Any, method: InstallMethod) -> Iterator[Finding]:
    if not selfcheck["active"]:
        holder = selfcheck.get("leaseHolder") or "no process"
        what = f"the extender does not lead (the Lease is held by {holder}), so gangs wait"
        fix = (
            "check that the kube-scheduler beside it holds the Lease that --lease names: read that kube-scheduler's log"
        )
        yield _find(Severity.ERROR, "leadership", what, fix)
    elif selfcheck.get("obstacle"):
        fix = "; ".join(dict.fromkeys((method.command_for(Piece.CRDS), method.command_for(Piece.RBAC))))
        yield _find(Severity.ERROR, "Reservations", f"Serried cannot read them: {selfcheck['obstacle']}", fix)


def _check_caches(selfcheck: Any, method: InstallMethod) -> Iterator[Finding]:
    api = selfcheck["api"]
    used = f"{api.get('group')}/{api.get('version')}"
    if api["level"] == NATIVE.name and api.get("podsKeepTheirGroup") is False:
        what = "the API server serves PodGroups, but drops the field of pods that names one, so gangs start pod by pod"
        fix = "turn the feature gate GenericWorkload on in every kube-apiserver, or off in all of them"
        yield _find(Severity.ERROR, f"API {used}", what, fix)
    for refused in api.get("refused", ()):
        severity = Severity.WARNING if api["level"] == NATIVE.name else Severity.ERROR
        fix = "install a release of Serried that supports this version"
        yield _find(severity, f"API {used}", f"{refused}; Serried uses {used} instead", fix)
    for kind, watch in sorted(selfcheck.get("watches", {}).items()):
        if not watch["served"] and kind in _NEEDED_WATCHES:
            fix = f"{method.command_for(Piece.CRDS)}, or turn on the feature gate that serves them"
            yield _find(Severity.ERROR, kind, "the API server does not serve them, so gangs wait", fix)
        elif watch["malformed"]:
            what = f"Serried cannot read {watch['malformed']} of them, and ignores these"
            yield _find(Severity.WARNING, kind, what, "kubectl get events -A --field-selector reason=Malformed")


def _check_holding(seen: Observed) -> Iterator[Finding]:
    hold = (seen.selfcheck or {}).get("hold", {})
    if hold.get("mode") == "gate" and hold.get("obstacle"):
        fix = f"{seen.method.command_for(Piece.GATE)}, or run the extender with --hold=filter"
        yield _find(Severity.ERROR, "--hold=gate", hold["obstacle"], fix)


def _check_marked(selfcheck: Any, method: InstallMethod) -> Iterator[Finding]:
    unmarked = selfcheck.get("isolation", {}).get("unmarkedMembers", 0)
    if selfcheck.get("isolation", {}).get("isolated") and unmarked:
        what = f"{count_things(unmarked, 'member', 'have')} no marker: kube-scheduler binds each without asking Serried"
        yield _find(Severity.ERROR, "markers", what, f"{method.command_for(Piece.MARKER)}, then delete these pods")


def _check_certificates(selfcheck: Any) -> Iterator[Finding]:
    for use, found in sorted(selfcheck.get("certificates", {}).items()):
        if warning := found.get("warning"):
            fix = "replace the file; no restart is needed"
            yield _find(Severity.WARNING, f"certificate ({use})", warning.removesuffix(f". {fix.capitalize()}"), fix)


def _find(severity: Severity, where: str, what: str, fix: str) -> Finding:
    return Finding(severity, Area.EXTENDER, where, what, fix)


_WIDER_KEYS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_MOST_NAMES = 5

Labels = Mapping[str, Mapping[str, str]]


def check_nodes(seen: Observed) -> Iterator[Finding]:
    """Yield findings about node labels: topology keys that nodes lack, and keys whose domains do not nest.

    Domains nest if each rack is in one zone, for instance.
    """
    if not seen.nodes:
        return
    for key in seen.keys:
        yield from _check_key(seen.nodes, key)
    yield from _check_levels(seen.nodes, seen.levels)
    labels = {key for labels in seen.nodes.values() for key in labels}
    keys = [*seen.keys, *(key for key in _WIDER_KEYS if key in labels and key not in seen.keys)]
    labelled = {each.label for pool in (seen.levels.pools if seen.levels else ()) for each in pool.labels.values()}
    for one, other in combinations(keys, 2):
        if not {one, other} <= labelled and (one in seen.keys or other in seen.keys):
            yield from _check_nesting(seen.nodes, one, other)


def _check_levels(nodes: Labels, table: LevelTable | None) -> Iterator[Finding]:
    """Yield a note with the node label that each topology level stands for, and warnings about levels that do not nest.

    For instance, each rack must be in one block. ``nodes`` has the labels of each node. ``table`` says which node label
    stands for each level, as the extender has found it out; without one, yield nothing.
    """
    if table is None:
        return
    what = "; ".join(_describe_pool(pool, table.pools[0]) for pool in table.pools if _differs(pool, table.pools[0]))
    fix = "if a label is wrong, set the labels of its level in TopologyLevels default (docs/placement.md)"
    yield Finding(Severity.NOTE, Area.NODES, "levels", what, fix)
    labelled = [(level, {pool.labels[level].label for pool in table.pools if level in pool.labels}) for level in LEVELS]
    for (narrow, labels), (wide, around) in combinations(labelled, 2):
        for label, wide_label in product(sorted(labels), sorted(around)):
            if label != wide_label and (value := _find_value_in_several(nodes, label, wide_label)):
                what = f"{value} of {label} lies in several domains of {wide_label}: {narrow} is not within {wide} here"
                fix = f"set labels that nest for both in TopologyLevels default, or give each {narrow} one {wide}"
                yield Finding(Severity.WARNING, Area.NODES, f"levels {narrow}, {wide}", what, fix)


def _differs(pool: Pool, every: Pool) -> bool:
    labels, usual = ({level: each.label for level, each in one.labels.items()} for one in (pool, every))
    return pool is every or labels != usual


def _describe_pool(pool: Pool, every: Pool) -> str:
    """Return which node label each topology level stands for on the nodes of a pool, as text for a finding.

    A pool has the nodes with one extended resource, such as nvidia.com/gpu. ``every`` is the pool of all nodes: for it,
    levels without a label are named, too.
    """
    told = {
        level: f"{level} means {each.label} on {each.nodes} of {pool.nodes}" if each is not None else f"{level} nothing"
        for level in LEVELS
        for each in (pool.labels.get(level),)
        if pool is every or level in pool.labels.keys() | every.labels.keys()
    }
    return (f"with {pool.resource}: " if pool.resource else "") + ", ".join(told.values())


def _find_value_in_several(nodes: Labels, narrow: str, wide: str) -> str:
    """Return a value of the label ``narrow`` whose nodes differ in the label ``wide``, "" if there is none.

    For instance a rack with nodes in two zones.
    """
    homes: dict[str, str] = {}
    for labels in nodes.values():
        value, home = labels.get(narrow), labels.get(wide)
        if value and home and homes.setdefault(value, home) != home:
            return value
    return ""


def _check_key(nodes: Labels, key: str) -> Iterator[Finding]:
    without = sorted(name for name, labels in nodes.items() if key not in labels)
    where = f"label {key}"
    if len(without) == len(nodes):
        what = "groups ask for this label, but no node has it: none of these gangs starts"
        yield Finding(Severity.ERROR, Area.NODES, where, what, f"kubectl label nodes NODE {key}=VALUE")
    elif without:
        what = (
            f"{len(without)} of {len(nodes)} nodes lack this label ({join_some(without, _MOST_NAMES)}): "
            "gangs that ask for it cannot use them"
        )
        yield Finding(Severity.WARNING, Area.NODES, where, what, f"kubectl label nodes {without[0]} {key}=VALUE")


def _check_nesting(nodes: Labels, one: str, other: str) -> Iterator[Finding]:
    """Yield a warning if the domains of two topology keys do not nest, for instance if one rack has nodes in two zones.

    ``one`` and ``other`` may come in any order: the key with more values is taken for the narrower one.
    """
    homes = defaultdict[str, set[str]](set)
    back = defaultdict[str, set[str]](set)
    for labels in nodes.values():
        if one in labels and other in labels:
            homes[labels[one]].add(labels[other])
            back[labels[other]].add(labels[one])
    narrow, wide = (one, other) if len(homes) >= len(back) else (other, one)
    found = homes if narrow == one else back
    for value, around in sorted(found.items()):
        if len(around) > 1:
            what = (
                f"{value} lies in {join_some(sorted(around), _MOST_NAMES)} of {wide}: "
                f"a gang that asks for one domain of {narrow} may run in several of these"
            )
            fix = f"give each domain of {narrow} a unique value, for example with the value of {wide} before it"
            yield Finding(Severity.WARNING, Area.NODES, f"label {narrow}", what, fix)
            return


_WORKLOAD_RESOURCES = ("podgroups", "workloads", "compositepodgroups")


def find_rights(seen: Observed) -> dict[Right, Need]:
    """Return the rights that the ServiceAccounts of this installation need, each with its purpose.

    They depend on whether the extenders elect their leader themselves.
    """
    return list_rights(ELECTING_NEEDS if seen.extenders_elect else NEEDS)


def check_rights(seen: Observed) -> Iterator[Finding]:
    """Yield a finding for each purpose for which a ServiceAccount lacks rights.

    It names all missing rights of that purpose.
    """
    needs, shipped = find_rights(seen), Piece.CONTROL_PLANE if seen.extenders_elect else Piece.RBAC
    missing = sorted(_list_relevant(seen, needs), key=lambda right: (right.account, needs[right].without, right))
    for (account, without), rights in groupby(missing, key=lambda right: (right.account, needs[right].without)):
        of_these = list(rights)
        severity = Severity.ERROR if needs[of_these[0]].vital else Severity.WARNING
        what = f"the account may not {', '.join(map(str, of_these))}: {without}"
        fix = f"{seen.method.command_for(needs[of_these[0]].component or shipped)}, or grant it in roles of your own"
        yield Finding(severity, Area.RIGHTS, f"ServiceAccount {account}", what, fix)


def _list_relevant(seen: Observed, needs: Mapping[Right, Need]) -> Iterator[Right]:
    """Yield the missing rights that are in ``needs`` and matter here.

    Serried uses PodGroups and Workloads of one API group. Rights on those of the other group do not matter.
    """
    level = (seen.selfcheck or {}).get("api", {}).get("group")
    unused = {NATIVE_GROUP: FALLBACK.group, FALLBACK.group: NATIVE_GROUP}.get(str(level), "")
    for right in seen.denied or ():
        about_groups = right.resource.partition("/")[0] in _WORKLOAD_RESOURCES
        if right in needs and not (about_groups and right.group == unused):
            yield right


_MARKER, _BIND_MARKER = sorted(MARKERS)
_LONGEST_FILTER_SECONDS = 60.0
_MOST_UNSAMPLED_NODES = 100
"""Number of nodes up to which kube-scheduler filters all nodes for each pod (upstream's minFeasibleNodesToFind).

In larger clusters it stops at a sample.
"""

_DEFAULT_QPS = 50


def check_scheduler(seen: Observed) -> Iterator[Finding]:
    """Yield findings about the KubeSchedulerConfiguration.

    Checked are the entries of ``extenders``, the profiles, percentageOfNodesToScore, the Lease and qps.
    """
    config = seen.config
    if config is None:
        return
    if not config.entries:
        fix = "copy the extenders of manifests/scheduler-config.yaml"
        yield _error(config, "extenders", "kube-scheduler knows no extender, so every gang starts pod by pod", fix)
        return
    yield from _check_filter(seen, config)
    yield from _check_bind(seen, config)
    for entry in config.entries:
        yield from _check_entry(config, entry)
    yield from _check_markers(seen, config)
    yield from _check_sampling(seen, config)
    yield from _check_profiles(seen, config)
    yield from _check_lease(seen, config)
    if config.qps <= _DEFAULT_QPS:
        what = f"qps is {config.qps:g}, which throttles the conditions and events of gangs of hundreds of pods"
        yield _warning(config, "clientConnection.qps", what, "set qps to 1000 and burst to 2000")


def _check_filter(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    asking = [entry for entry in config.entries if entry.filter_verb]
    if not asking:
        what = "no entry has a filterVerb: Serried neither holds members nor plans nodes, so gangs start pod by pod"
        yield _error(config, "extenders", what, "set filterVerb: filter")
    for entry in asking:
        yield from _check_address(seen, config, entry, "filter-listen")
        if not entry.preempt_verb:
            what = (
                "without preemptVerb, kube-scheduler evicts members for pods of higher priority without asking Serried"
            )
            yield _warning(config, _name(entry), what, "set preemptVerb: preempt")
        if entry.timeout_seconds > _LONGEST_FILTER_SECONDS:
            what = f"a filter call may take {entry.timeout_seconds:g} s, in which kube-scheduler does nothing else"
            yield _warning(config, f"{_name(entry)}.httpTimeout", what, "set 5s here, and bindVerb in another entry")


def _check_bind(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    binding = [entry for entry in config.entries if entry.bind_verb]
    if not binding:
        what = "no entry has a bindVerb: kube-scheduler binds members itself, one by one, so gangs start in part"
        yield _error(config, "extenders", what, "set bindVerb: bind in an entry for the address of --bind-listen")
    deadline = _read_seconds(seen, "barrier-deadline")
    for entry in binding:
        yield from _check_address(seen, config, entry, "bind-listen")
        if deadline is not None and entry.timeout_seconds <= deadline:
            what = (
                f"kube-scheduler ends a bind call after {entry.timeout_seconds:g} s, before the extender does "
                f"(--barrier-deadline {deadline:g}): members that wait for their gang fail"
            )
            fix = "set httpTimeout: 15m, or a --barrier-deadline below it"
            yield _error(config, f"{_name(entry)}.httpTimeout", what, fix)


def _check_address(seen: Observed, config: SchedulerConfig, entry: Entry, flag: str) -> Iterator[Finding]:
    address = seen.flags.get(flag, "")
    scheme = "https" if seen.flags.get("client-ca-file") else "http"
    if not address or _leads_to(entry.url.rstrip("/"), scheme, address):
        return
    what = f"kube-scheduler calls {entry.url or 'no address'}, but the extender listens at {address} (--{flag})"
    if not entry.url.startswith(f"{scheme}://"):
        what += f" by {'TLS' if scheme == 'https' else 'plain HTTP'}"
    yield _error(config, f"{_name(entry)}.urlPrefix", what, f"set urlPrefix: {scheme}://{address}")


def _leads_to(url: str, scheme: str, address: str) -> bool:
    """Return whether the URL in the scheduler's configuration leads to ``address``, at which the extender listens.

    ``scheme`` is http or https. If the extender does not listen on loopback only, the URL may name a Service, so any
    host is accepted.
    """
    if _spell_loopback(address) == address:
        return url.startswith(f"{scheme}://")
    return url in {f"{scheme}://{address}", f"{scheme}://{_spell_loopback(address)}"}


def _spell_loopback(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in {"127.0.0.1", "[::1]"} else address


def _check_entry(config: SchedulerConfig, entry: Entry) -> Iterator[Finding]:
    if entry.ignorable:
        what = "while the extender is down, kube-scheduler works without it, so gangs start in part"
        yield _error(config, f"{_name(entry)}.ignorable", what, "set ignorable: false")
    if not entry.node_cache and (entry.filter_verb or entry.prioritize_verb):
        what = "nodeCacheCapable is not true: kube-scheduler sends Node objects instead of names, so each call fails"
        yield _error(config, f"{_name(entry)}.nodeCacheCapable", what, "set nodeCacheCapable: true")
    if entry.prioritize_verb and entry.managed:
        what = "prioritizeVerb ranks nodes for pods of no gang, but kube-scheduler does not call Serried for such pods"
        yield _warning(config, f"{_name(entry)}.prioritizeVerb", what, "remove it")


def _check_markers(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    told = seen.flags.get("isolated")
    isolated = any(entry.managed for entry in config.entries) if told is None else told == "on"
    for entry in config.entries:
        wanted = _BIND_MARKER if entry.bind_verb and not entry.filter_verb else _MARKER
        names = {each.name for each in entry.managed}
        where = f"{_name(entry)}.managedResources"
        if isolated and not names:
            what = "the installation is isolated, but kube-scheduler calls this entry for every pod"
            yield _error(config, where, what, f"add {wanted} ({seen.method.command_for(Piece.ISOLATED)})")
        elif names and wanted not in names:
            what = (
                f"kube-scheduler calls Serried for pods that request {', '.join(sorted(names))}, which no member does"
            )
            yield _error(config, where, what, f"name {wanted} ({seen.method.command_for(Piece.ISOLATED)})")
        elif names and not isolated:
            what = (
                "kube-scheduler calls Serried for marked pods only, but the extender does not warn of unmarked members"
            )
            yield _error(config, where, what, "run the extender with --isolated=on, or remove managedResources")
        for each in entry.managed:
            if not each.ignored and each.name in MARKERS:
                what = f"{each.name} is not ignoredByScheduler: a quantity above 0 would fit on no node"
                yield _warning(config, where, what, "set ignoredByScheduler: true")


def _check_sampling(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    sampled = len(seen.nodes or ()) > _MOST_UNSAMPLED_NODES
    for where, percentage in _list_percentages(seen, config):
        if percentage is not None and 0 < percentage < 100:
            what = (
                f"percentageOfNodesToScore is {percentage}: kube-scheduler offers Serried so few nodes that a member's "
                "planned node is often missing, so Serried has to nominate the member and kube-scheduler tries it again"
            )
            yield _warning(
                config, where, what, "set 100, or remove the field, so that kube-scheduler adapts the percentage"
            )
        elif not percentage and seen.flags.get("stamp") == "never" and sampled:
            what = "with --stamp=never, a member's planned node may never be in kube-scheduler's sample of nodes"
            fix = "set percentageOfNodesToScore: 100, or run the extender with --stamp=auto"
            yield _error(config, where, what, fix)


def _list_percentages(seen: Observed, config: SchedulerConfig) -> Iterator[tuple[str, int | None]]:
    if all(each.percentage is None for each in config.profiles):
        yield "percentageOfNodesToScore", config.percentage
        return
    for place, profile in enumerate(config.profiles):
        if profile.scheduler in _list_schedulers(seen):
            percentage = config.percentage if profile.percentage is None else profile.percentage
            yield f"profiles[{place}].percentageOfNodesToScore", percentage


def _check_profiles(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    ours = _list_schedulers(seen)
    there = {profile.scheduler for profile in config.profiles}
    for name in sorted(ours - there):
        what = f"no profile is called {name} (--scheduler-name), so kube-scheduler ignores pods with this schedulerName"
        yield _error(config, "profiles", what, f"add a profile with schedulerName: {name}")
    yield from _check_other_profiles(seen, config, there - ours)
    for profile in (each for each in config.profiles if each.scheduler not in ours):
        what = f"all profiles call the extender: pods of {profile.scheduler} lose opportunistic batching"
        if not all(entry.managed for entry in config.entries):
            what += ", and wait for Serried's answers although none of them is a member"
        yield _warning(config, "profiles", what, f"run {profile.scheduler} as a separate kube-scheduler")


def _check_other_profiles(seen: Observed, config: SchedulerConfig, others: set[str]) -> Iterator[Finding]:
    """Yield findings if preemption is on and --other-profiles does not name exactly the profiles in ``others``.

    These are the profiles of this kube-scheduler whose pods Serried does not serve (--scheduler-name). The extender may
    evict pods of the profiles that the flag names, because this kube-scheduler then keeps the freed resources for the
    gang. Another scheduler would give them to its own pods.
    """
    if seen.flags.get("preemption") != "on":
        return
    told = set(filter(None, seen.flags.get("other-profiles", "").split(",")))
    for name in sorted(told - others):
        what = f"no profile is called {name} (--other-profiles): its scheduler would use what evicted pods free"
        yield _error(config, "profiles", what, f"run the extender without --other-profiles={name}")
    for name in sorted(others - told):
        what = f"Serried evicts no pods of {name} for a gang: --other-profiles does not name this profile"
        yield _warning(config, "profiles", what, f"run the extender with --other-profiles={name}")


def _list_schedulers(seen: Observed) -> set[str]:
    return set(seen.flags.get("scheduler-name", "serried").split(","))


def _check_lease(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    if seen.extenders_elect:
        return
    followed = seen.flags.get("lease", "")
    if followed and not config.elects:
        what = f"leaderElect is false, but the extender waits until its kube-scheduler holds the Lease {followed}"
        yield _error(
            config, "leaderElection.leaderElect", what, "set leaderElect: true, or run the extender with --lease="
        )
    elif followed and followed != config.lease:
        namespace, _, name = followed.partition("/")
        what = f"kube-scheduler holds the Lease {config.lease}, but the extender follows {followed}, so it never leads"
        yield _error(config, "leaderElection", what, f"set resourceNamespace: {namespace} and resourceName: {name}")


def _read_seconds(seen: Observed, flag: str) -> float | None:
    try:
        return float(seen.flags[flag])
    except (KeyError, ValueError):
        return None


def _name(entry: Entry) -> str:
    return f"extenders[{entry.place}]"


def _error(config: SchedulerConfig, where: str, what: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, Area.SCHEDULER, f"{config.source}: {where}", what, fix)


def _warning(config: SchedulerConfig, where: str, what: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, Area.SCHEDULER, f"{config.source}: {where}", what, fix)
