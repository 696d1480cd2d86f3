"""Whether the scheduler's configuration and the extender's flags are two halves of one agreement."""

from collections.abc import Iterator

from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.observed import Entry, Observed, Profile, SchedulerConfig
from serried.model.pod import MARKERS

_MARKER, _BIND_MARKER = sorted(MARKERS)
_LONGEST_FILTER_SECONDS = 60.0
_MOST_UNSAMPLED_NODES = 100
"""So many nodes are looked at whatever the sample (upstream's minFeasibleNodesToFind)."""

_DEFAULT_QPS = 50


def check_scheduler(seen: Observed) -> Iterator[Finding]:
    """Everything about the scheduler's configuration."""
    config = seen.config
    if config is None:
        return
    if not config.entries:
        fix = "take the extenders of manifests/scheduler-config.yaml"
        yield _error(config, "extenders", "the scheduler knows no extender, so every gang starts pod by pod", fix)
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
        what = "no entry has a filterVerb: members are neither held nor steered, so gangs start pod by pod"
        yield _error(config, "extenders", what, "set filterVerb: filter")
    for entry in asking:
        yield from _check_address(seen, config, entry, "filter-listen")
        if not entry.preempt_verb:
            what = "without preemptVerb pods of higher priority may evict members, and Serried is not asked"
            yield _warning(config, _name(entry), what, "set preemptVerb: preempt")
        if entry.timeout_seconds > _LONGEST_FILTER_SECONDS:
            what = f"a filter call may take {entry.timeout_seconds:g} s, in which the scheduler does nothing else"
            yield _warning(config, f"{_name(entry)}.httpTimeout", what, "set 5s here, and bindVerb in another entry")


def _check_bind(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    binding = [entry for entry in config.entries if entry.bind_verb]
    if not binding:
        what = "no entry has a bindVerb: the scheduler binds members itself, each as it comes, so gangs start in part"
        yield _error(config, "extenders", what, "set bindVerb: bind in an entry for the address of --bind-listen")
    deadline = _read_seconds(seen, "barrier-deadline")
    for entry in binding:
        yield from _check_address(seen, config, entry, "bind-listen")
        if deadline is not None and entry.timeout_seconds <= deadline:
            what = (
                f"the scheduler gives up on a bind call after {entry.timeout_seconds:g} s, before the barrier does "
                f"(--barrier-deadline {deadline:g}): members that wait for their gang fail"
            )
            fix = "set httpTimeout: 15m, or a --barrier-deadline below it"
            yield _error(config, f"{_name(entry)}.httpTimeout", what, fix)


def _check_address(seen: Observed, config: SchedulerConfig, entry: Entry, flag: str) -> Iterator[Finding]:
    address = seen.flags.get(flag, "")
    scheme = "https" if seen.flags.get("client-ca-file") else "http"
    if not address or _leads_to(entry.url.rstrip("/"), scheme, address):
        return
    what = f"it calls {entry.url or 'no address'}, and the extender listens at {address} (--{flag})"
    if not entry.url.startswith(f"{scheme}://"):
        what += f" by {'TLS' if scheme == 'https' else 'plain HTTP'}"
    yield _error(config, f"{_name(entry)}.urlPrefix", what, f"set urlPrefix: {scheme}://{address}")


def _leads_to(url: str, scheme: str, address: str) -> bool:
    """Whether one gets there; what stands for an address that is not loopback, as a Service, nobody can tell."""
    if _spell_loopback(address) == address:
        return url.startswith(f"{scheme}://")
    return url in {f"{scheme}://{address}", f"{scheme}://{_spell_loopback(address)}"}


def _spell_loopback(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in {"127.0.0.1", "[::1]"} else address


def _check_entry(config: SchedulerConfig, entry: Entry) -> Iterator[Finding]:
    if entry.ignorable:
        what = "ignorable: while the extender is down the scheduler goes on without it, and gangs start in part"
        yield _error(config, f"{_name(entry)}.ignorable", what, "set ignorable: false")
    if not entry.node_cache and (entry.filter_verb or entry.prioritize_verb):
        what = "nodeCacheCapable is not true: the scheduler sends Node objects instead of names, and every call fails"
        yield _error(config, f"{_name(entry)}.nodeCacheCapable", what, "set nodeCacheCapable: true")
    if entry.prioritize_verb and entry.managed:
        what = "prioritizeVerb ranks nodes for pods of no gang, and about these the scheduler does not ask"
        yield _warning(config, f"{_name(entry)}.prioritizeVerb", what, "remove it")


def _check_markers(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    told = seen.flags.get("isolated")
    isolated = any(entry.managed for entry in config.entries) if told is None else told == "on"
    for entry in config.entries:
        wanted = _BIND_MARKER if entry.bind_verb and not entry.filter_verb else _MARKER
        names = {each.name for each in entry.managed}
        where = f"{_name(entry)}.managedResources"
        if isolated and not names:
            what = "the installation is isolated, and here the scheduler asks about every pod"
            yield _error(config, where, what, f"add {wanted} (manifests/kustomize/isolated)")
        elif names and wanted not in names:
            what = f"the scheduler asks about pods that name {', '.join(sorted(names))}, which no member does"
            yield _error(config, where, what, f"name {wanted} (manifests/kustomize/isolated)")
        elif names and not isolated:
            what = "the scheduler asks about marked pods only, and the extender is not told: it warns of none without"
            yield _error(config, where, what, "run the extender with --isolated=on, or remove managedResources")
        for each in entry.managed:
            if not each.ignored and each.name in MARKERS:
                what = f"{each.name} is not ignoredByScheduler: a quantity above 0 would fit on no node"
                yield _warning(config, where, what, "set ignoredByScheduler: true")


def _check_sampling(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    for where, percentage in _list_percentages(seen, config):
        if percentage is not None and 0 < percentage < 100:
            what = (
                f"percentageOfNodesToScore is {percentage}: the scheduler shows Serried so few of the nodes that a "
                "member's planned one is often missing, and the member has to be nominated and tried again"
            )
            yield _warning(config, where, what, "remove it, which is adaptive, or set 100")
        elif not percentage and seen.flags.get("stamp") == "never" and _is_sampled(seen):
            what = "with --stamp=never nothing brings a member's planned node into the scheduler's sample of nodes"
            yield _error(
                config, where, what, "set percentageOfNodesToScore: 100, or run the extender with --stamp=auto"
            )


def _list_percentages(seen: Observed, config: SchedulerConfig) -> Iterator[tuple[str, int | None]]:
    if all(each.percentage is None for each in config.profiles):
        yield "percentageOfNodesToScore", config.percentage
        return
    for place, profile in enumerate(config.profiles):
        if profile.scheduler in _list_schedulers(seen):
            percentage = config.percentage if profile.percentage is None else profile.percentage
            yield f"profiles[{place}].percentageOfNodesToScore", percentage


def _is_sampled(seen: Observed) -> bool:
    return len(seen.nodes or ()) > _MOST_UNSAMPLED_NODES


def _check_profiles(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    ours = _list_schedulers(seen)
    there = {profile.scheduler for profile in config.profiles}
    for name in sorted(ours - there):
        what = f"no profile is called {name} (--scheduler-name), so nobody schedules the pods that name it"
        yield _error(config, "profiles", what, f"add a profile with schedulerName: {name}")
    yield from _check_other_profiles(seen, config, there - ours)
    for profile in _list_foreign(config.profiles, ours):
        what = f"the extender is every profile's: pods of {profile.scheduler} lose opportunistic batching"
        if not all(entry.managed for entry in config.entries):
            what += ", and wait for Serried's answers although none of them is a gang's"
        yield _warning(config, "profiles", what, f"run {profile.scheduler} as a kube-scheduler of its own")


def _check_other_profiles(seen: Observed, config: SchedulerConfig, others: set[str]) -> Iterator[Finding]:
    """Whose pods may be evicted for a gang: those of this kube-scheduler, which keeps the room for the gang then."""
    if seen.flags.get("preemption") != "on":
        return
    told = set(filter(None, seen.flags.get("other-profiles", "").split(",")))
    for name in sorted(told - others):
        what = f"no profile is called {name} (--other-profiles): another scheduler takes the room of its pods that go"
        yield _error(config, "profiles", what, f"run the extender without --other-profiles={name}")
    for name in sorted(others - told):
        what = f"pods of {name} are evicted for no gang: --other-profiles does not name it"
        yield _warning(config, "profiles", what, f"run the extender with --other-profiles={name}")


def _list_foreign(profiles: tuple[Profile, ...], ours: set[str]) -> list[Profile]:
    return [profile for profile in profiles if profile.scheduler not in ours]


def _list_schedulers(seen: Observed) -> set[str]:
    return set(seen.flags.get("scheduler-name", "serried").split(","))


def _check_lease(seen: Observed, config: SchedulerConfig) -> Iterator[Finding]:
    if seen.extenders_elect:
        return
    followed = seen.flags.get("lease", "")
    if followed and not config.elects:
        what = f"leaderElect is false, and the extender waits for the Lease {followed} that its scheduler would hold"
        yield _error(config, "leaderElection.leaderElect", what, "set leaderElect: true, or run it with --lease=")
    elif followed and followed != config.lease:
        namespace, _, name = followed.partition("/")
        what = f"the scheduler holds the Lease {config.lease}, and the extender follows {followed}: it never leads"
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
