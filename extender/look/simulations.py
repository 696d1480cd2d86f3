"""The routes ``POST /debug/whatif`` and ``/debug/snapshot``. Nothing is created or changed.

`whatif_routes` is for questions whether gangs would fit, where, and with which victims. `snapshot_routes` returns the
planner's whole input as one file, from which ``serried replay`` repeats decisions.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict
from starlette.requests import ClientDisconnect

from extender.core.scheduling.request import describe_uncounted
from extender.look.claims import separate_claims
from extender.look.cluster import take_capture_without_pods
from extender.look.decide import Changes, Hypothesis, Prediction
from extender.look.document import EXAMPLES, View, describe_responses
from extender.look.explain import PreemptionView, view_preemption
from extender.look.manifests import READ, flatten, read_documents, separate_podless, separate_priority_classes
from extender.look.owners import AskedGang, find_existing, find_gangs
from extender.look.snapshot import compress, list_writers, write_snapshot
from extender.wiring import Core
from serried.api.level import ApiLevel
from serried.api.names import GroupKey, GroupKind, count_things, decode_group_key
from serried.api.verdict import Reason, render
from serried.cluster.cache import Store
from serried.ops.fork import NoAnswerError, answer_in_child
from serried.ops.slices import Slices, TooLongError, join
from serried.ops.steps import Work
from serried.plan.eviction import Preemption
from serried.plan.limit import Limit, TooLong
from serried.rules.volumes.cluster import Volumes

_PIECE_BYTES = 1 << 16
_SNAPSHOT_SECONDS = 60.0
_SNAPSHOT_PAUSE_SECONDS = "5"

_SNAPSHOT_BUSY = "another snapshot is being written; try again in some seconds"


class Form(StrEnum):
    """The encoding of a snapshot file."""

    JSON = "json"
    GZIP = "gzip"


class SnapshotView(View):
    """A snapshot file: the planner's whole input. Its other fields are those of `extender.look.snapshot.Capture`."""

    model_config = ConfigDict(extra="allow")

    version: int
    """The version of the file's format."""

    serried: str
    """The version of Serried that has written it."""

    nodes: list[dict[str, Any]]

    used: dict[str, dict[str, int]]
    """The resources that pods use on each node, by node and resource."""

    pods: list[dict[str, Any]]
    """The pods that run or wait for resources, and the members of groups."""

    groups: list[dict[str, Any]]


_TYPES = {Form.JSON: ("application/json", "json"), Form.GZIP: ("application/gzip", "json.gz")}


def _describe_answer() -> dict[int | str, dict[str, Any]]:
    responses = describe_responses(EXAMPLES["/snapshot"])
    responses[200]["content"][_TYPES[Form.GZIP][0]] = {"schema": {"type": "string", "format": "binary"}}
    return responses


class Snapshots:
    """Answers requests for a snapshot file of the planner's input.

    Only one is answered at a time; a request in that time gets status 429.
    """

    def __init__(self, core: Core, level: ApiLevel, slices: Slices) -> None:
        self._core = core
        self._level = level
        self._slices = slices
        self._lock = asyncio.Lock()

    async def show_snapshot(self, group: str = "", form: Form = Form.JSON) -> StreamingResponse:
        """Return the planner's whole input at one instant: nodes, used resources, groups, reservations, settings.

        It has no environment variables, annotations or tokens, and of labels only those that matter for decisions.
        ``group`` (NAMESPACE/NAME) is the group whose decision ``serried replay`` repeats. ``form`` is the encoding.
        """
        key, slices = _find_group(self._core, group), self._slices
        if self._lock.locked():
            raise HTTPException(429, _SNAPSHOT_BUSY, headers={"Retry-After": _SNAPSHOT_PAUSE_SECONDS})
        async with self._lock:
            try:
                pieces = await slices.finish(_write(self._core, self._level, key, form), _SNAPSHOT_SECONDS)
            except TooLongError:
                raise HTTPException(503, f"the snapshot took more than {_SNAPSHOT_SECONDS:.0f} s of work") from None
        media_type, ending = _TYPES[form]
        headers = {
            "Content-Disposition": f'attachment; filename="serried-snapshot.{ending}"',
            "X-Longest-Slice-Milliseconds": f"{slices.longest * 1000:.1f}",
            "X-Work-Milliseconds": f"{slices.spent * 1000:.0f}",
        }
        return StreamingResponse(_stream(pieces), media_type=media_type, headers=headers)


def snapshot_routes(core: Core, level: ApiLevel, slices: Slices | None = None) -> APIRouter:
    """Return the route ``/snapshot`` below ``/debug``.

    ``level`` is the API group and version of PodGroups that the cluster uses; snapshots contain it. ``slices`` limits
    how long the event loop is blocked at a time; None for the usual 2 ms.
    """
    list_writers()  # now, as its first call would delay filter later
    router = APIRouter()
    responses = {
        **_describe_answer(),
        400: {"description": "The name of the group is invalid; the answer says how to write it."},
        404: {"description": "The group is not known."},
        503: {"description": f"It took more than {_SNAPSHOT_SECONDS:.0f} s of work."},
        429: {"description": "Another snapshot is being written."},
    }
    show = Snapshots(core, level, slices or Slices()).show_snapshot
    router.add_api_route("/snapshot", show, response_model=SnapshotView, responses=responses)
    return router


def _find_group(core: Core, text: str) -> GroupKey | None:
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise HTTPException(400, f"group is NAMESPACE/NAME, as /debug/groups gives them, not {text[:100]!r}")
    key = core.store.forest.find_tree_key(decode_group_key(namespace, name))
    if key not in core.store.groups and key not in core.store.members:
        raise HTTPException(404, f"no PodGroup {key} is known, and no pod names it; see /debug/groups")
    return key


def _write(core: Core, level: ApiLevel, key: GroupKey | None, form: Form) -> Work[list[bytes]]:
    capture, pods = yield from take_capture_without_pods(core, level, key)
    chunks = write_snapshot(capture, pods)
    return (yield from join(compress(chunks) if form is Form.GZIP else chunks, _PIECE_BYTES))


async def _stream(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


_MAX_BODY_BYTES = 1 << 18
_LIMIT_SECONDS = 10.0
_PAUSE_SECONDS = "1"
_GIVE_WAY_SECONDS = 0.0005

_BUSY = "another what-if request is running; try again in a second"


class Outcome(StrEnum):
    """The answer about one gang in one word."""

    FITS = "Fits"

    FITS_AFTER_EVICTIONS = "FitsAfterEvictions"
    """The gang fits once pods of lower priority have been evicted."""

    DOES_NOT_FIT = "DoesNotFit"


class PredictionView(View):
    """The answer to a what-if question about one gang."""

    namespace: str
    name: str
    kind: GroupKind

    owner: str
    """The owner of the group, as kubectl names it (`job/train`); "" if it has none."""

    source: str
    """The manifest that the gang comes from, or the existing group: kind, namespace and name."""

    outcome: Outcome

    noGang: str
    """The reason why the pods would be placed one by one, a phrase; "" for a gang.

    `Fits` then means that all pods fit.
    """

    priority: int

    members: int
    """The number of members that would wait for a node when the gang is planned."""

    need: int
    """The number of waiting members that must be placed together to reach the quorum."""

    placed: int
    """The number of members that would get a node."""

    domain: str
    """The topology domain in which the gang would be placed; "" without a topology key or a plan."""

    nodes: dict[str, int]
    """The number of members that would get each node, by node name."""

    reason: str
    """The reason why the gang does not fit without evictions; "" if it fits, `Scheduled` if it runs already."""

    message: str

    preemption: PreemptionView | None
    """The result of the search for victims, i.e. pods to evict for the gang; None if none was made."""


class ChangesView(View):
    """The hypothetical changes of the cluster in a question, as they were asked for."""

    drained: list[str]

    displaced: int
    """The number of pods on the drained nodes that would need another node.

    Whether they would find one is not examined.
    """

    added: list[str]
    removed: list[str]


class WhatIfView(View):
    """The answer to a what-if question."""

    fits: bool
    """True if every gang fits without evictions, and `refused` is empty."""

    groups: list[PredictionView]
    """The gangs in the order in which they would be planned.

    Each gets the free resources that those before it leave.
    """

    refused: list[str]
    """A sentence about each object that could not be read or planned: its place, the error, and what to do."""

    skipped: list[str]
    """The objects that were left out because they create no pods, as kind and name."""

    changes: ChangesView
    workSeconds: float

    longestSliceSeconds: float
    """The longest time for which this question blocked the extender's event loop, and so filter, in seconds."""


_MANIFEST = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  template:
    spec:
      schedulerName: serried
      restartPolicy: Never
      containers:
      - name: worker
        image: train
        resources: {requests: {cpu: "1"}}
"""
"""The manifest of the example question in the OpenAPI."""

_BODY = {
    "content": {
        "application/yaml": {"schema": {"type": "string"}, "example": _MANIFEST},
        "application/json": {"schema": {"type": "object"}, "example": read_documents(_MANIFEST)[0]},
    }
}
"""The description of the request body in the OpenAPI. The example answer is the answer to the example here."""


class _Found(NamedTuple):
    """The results of a what-if question, before they become a `WhatIfView`."""

    predictions: list[Prediction]
    refused: list[str]
    skipped: list[str]


Texts = Annotated[list[str] | None, Query()]


class Questions:
    """Answers what-if questions, each with at most `_LIMIT_SECONDS` of work.

    Only one is answered at a time; a request in that time gets status 429.
    ``stopwatch`` measures the work: it returns the seconds that the calling thread has worked until now.
    """

    def __init__(self, core: Core, stopwatch: Callable[[], float]) -> None:
        self._core = core
        self._stopwatch = stopwatch
        self._lock = asyncio.Lock()

    async def ask_whatif(
        self,
        request: Request,
        namespace: str = "default",
        group: Texts = None,
        drain: Texts = None,
        add: Texts = None,
        remove: Texts = None,
    ) -> WhatIfView:
        """Return whether the gangs in the body would fit. The body has manifests as YAML or JSON.

        It may have Jobs, JobSets, LeaderWorkerSets, PodGroups, CompositePodGroups, Workloads, Pods and Lists of them.
        Objects that create no pods, such as Services, are left out and named in ``skipped``. Objects of an unknown kind
        might create pods, so they are named in ``refused``, and so are objects with errors; the question is answered
        for the others. Missing requests are set from limits, as an API server does. LimitRanges, RuntimeClasses and
        quotas are not considered here: ``serried whatif`` asks the API server about them. PriorityClasses,
        PersistentVolumeClaims, ResourceClaims, ResourceClaimTemplates and ComputeDomains in the body count as created,
        a ComputeDomain together with the ResourceClaimTemplate that its controller would create. ``namespace`` is for
        objects without one. Nothing is created or changed.

        ``group`` (NAMESPACE/NAME) asks about an existing group. Three parameters change the cluster for the question:
        ``drain`` removes a node, ``add`` (4*NODE) adds four copies of a node, ``remove`` (NAMESPACE/NAME) removes a
        group. All four may be repeated.
        """
        self._check_free()
        body = await _read_body(request)  # before the lock, so that a slow sender does not block other questions
        self._check_free()
        async with self._lock:
            try:
                drained = tuple(dict.fromkeys(drain or ()))
                added, removed = _read_additions(add or ()), _read_groups(self._core, remove or ())
                return await self._answer(Changes(drained, added, removed), body, namespace, group or ())
            except ValueError as problem:
                raise HTTPException(400, str(problem)) from None
            except TooLongError:
                said = (
                    f"Serried found no answer in {_LIMIT_SECONDS:.0f} s of work; ask for fewer gangs, or smaller ones"
                )
                raise HTTPException(503, said) from None
            except NoAnswerError as problem:
                raise HTTPException(503, f"Serried could not answer: {problem}") from None

    def _check_free(self) -> None:
        if self._lock.locked():
            raise HTTPException(429, _BUSY, headers={"Retry-After": _PAUSE_SECONDS})

    async def _answer(self, changes: Changes, body: str, namespace: str, groups: Sequence[str]) -> WhatIfView:
        core, documents = self._core, await _read_documents(body)
        asked = _read_groups(core, groups)

        def answer() -> tuple[WhatIfView | ValueError | None, list[bool]]:
            said = find()
            core.store.forget_hypothetical()  # needs of pods that do not exist
            return said, [rule.wanted for rule in core.store.all_rules]

        def find() -> WhatIfView | ValueError | None:
            limit = Limit(self._stopwatch, _LIMIT_SECONDS, _LIMIT_SECONDS / 2)
            hypothesis = Hypothesis(core, changes, limit)
            try:
                hypothesis.check()
                found = _answer(core, hypothesis, documents, namespace, asked)
                return _view_answer(found, changes, hypothesis.displaced, core.store)
            except ValueError as problem:
                return problem
            except TooLong:
                return None

        worked = await answer_in_child(answer, _LIMIT_SECONDS, core.fork, self._stopwatch)
        said, wanted = worked.found
        for rule, is_wanted in zip(core.store.all_rules, wanted, strict=True):
            if is_wanted:
                rule.wanted = True  # the objects that the rule reads are listed for the next question
        if said is None:
            raise TooLongError
        if isinstance(said, ValueError):
            raise said
        times = {"workSeconds": round(worked.spent, 4), "longestSliceSeconds": round(worked.held, 4)}
        return said.model_copy(update=times)


def whatif_routes(core: Core, stopwatch: Callable[[], float] = time.thread_time) -> APIRouter:
    """Return the route ``/whatif`` below ``/debug``.

    ``stopwatch`` measures the work, which is limited per question: it returns the seconds that the calling thread has
    worked until now.
    """
    router = APIRouter()
    responses = {
        **describe_responses(EXAMPLES["/whatif"]),
        400: {"description": "The body or a change is invalid; the answer says which one, and what to do."},
        413: {"description": f"The body has more than {_MAX_BODY_BYTES} bytes."},
        429: {"description": "Another what-if request is running."},
        503: {"description": f"The answer took more than {_LIMIT_SECONDS:.0f} s of work."},
    }
    ask = Questions(core, stopwatch).ask_whatif
    extra = {"requestBody": _BODY}
    router.add_api_route("/whatif", ask, methods=["POST"], responses=responses, openapi_extra=extra)
    return router


def _answer(
    core: Core, hypothesis: Hypothesis, documents: list[Any], namespace: str, asked: Sequence[GroupKey]
) -> _Found:
    gangs: list[AskedGang] = [find_existing(core.store, key) for key in asked]
    refused: list[str] = []
    placed, classes = separate_priority_classes(flatten(documents), core.store.priority_classes)
    placed, coming = separate_claims(placed, namespace, core.store.rule(Volumes).supply.find_default())
    objects, skipped = separate_podless(placed)
    if skipped and not objects and not asked:
        raise ValueError(f"no object in the body makes pods; Serried reads {READ}")
    if objects or not asked:
        found = find_gangs(objects, core.store, namespace, classes, coming)
        gangs += found.gangs
        refused = found.refused
    while core.store.apply_rule_changes():  # rules about other pods count existing pods for the new shapes, too
        pass
    return _Found(hypothesis.solve(gangs), refused, skipped)


async def _read_body(request: Request) -> str:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                said = f"the body has more than {_MAX_BODY_BYTES} bytes; ask for fewer objects at a time"
                raise HTTPException(413, said)
    except ClientDisconnect:  # no client gets the answer, and it must not be logged as a failure
        raise HTTPException(400, "the connection ended before the body did") from None
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is no UTF-8 text; send YAML or JSON") from None


async def _read_documents(body: str) -> list[Any]:
    """Return the parsed documents in the body of a request.

    A thread parses them, so that the event loop goes on. Meanwhile the interpreter switches threads more often than
    usual (``sys.setswitchinterval``).
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_GIVE_WAY_SECONDS)
    try:
        return await asyncio.to_thread(read_documents, body)
    finally:
        sys.setswitchinterval(usual)


def _read_additions(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for text in texts:
        number, star, like = text.partition("*")
        if not (star and like and number.isascii() and number.isdecimal() and len(number) < 6):
            raise ValueError(f"add is NUMBER*NODE, such as 4*node-7, not {text[:100]!r}")
        found[like] += int(number)
    return tuple(found.items())


def _read_groups(core: Core, texts: Sequence[str]) -> tuple[GroupKey, ...]:
    found: dict[GroupKey, None] = {}
    for text in texts:
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name):
            raise ValueError(f"a group is NAMESPACE/NAME, as /debug/groups gives them, not {text[:100]!r}")
        found[core.store.forest.find_tree_key(decode_group_key(namespace, name))] = None
    return tuple(found)


def _find_outcome(found: Prediction) -> Outcome:
    if found.plan is not None and (found.gang.group.policy.is_gang or len(found.plan.nodes) == found.members):
        return Outcome.FITS
    if found.verdict is not None and found.verdict.reason is Reason.SCHEDULED:
        return Outcome.FITS  # the gang runs already
    if isinstance(found.preemption, Preemption):
        return Outcome.FITS_AFTER_EVICTIONS
    return Outcome.DOES_NOT_FIT


def _view_answer(found: _Found, changes: Changes, displaced: int, store: Store) -> WhatIfView:
    return WhatIfView(
        fits=not found.refused and all(_find_outcome(each) is Outcome.FITS for each in found.predictions),
        groups=[_view(each, store) for each in found.predictions],
        refused=found.refused,
        skipped=found.skipped,
        changes=ChangesView(
            drained=list(changes.drained),
            displaced=displaced,
            added=[f"{count}*{like}" for like, count in changes.added],
            removed=[str(key) for key in changes.removed],
        ),
        workSeconds=0.0,
        longestSliceSeconds=0.0,
    )


def _view(found: Prediction, store: Store) -> PredictionView:
    plan = found.preemption.plan if isinstance(found.preemption, Preemption) else found.plan
    key, no_gang, said = found.gang.group.key, found.gang.no_gang, _describe(found, store)
    return PredictionView(
        namespace=key.namespace,
        name=key.encoded,
        kind=key.kind,
        owner=store.membership.name_owner(key),
        source=found.gang.source,
        outcome=_find_outcome(found),
        noGang=no_gang,
        priority=found.priority,
        members=found.members,
        need=found.need,
        placed=0 if plan is None else len(plan.nodes),
        domain="" if plan is None else plan.domain,
        nodes={} if plan is None else dict(sorted(Counter(plan.nodes.values()).items())),
        reason="" if found.verdict is None else found.verdict.reason.value,
        message=f"no gang, so {no_gang}; {said}" if no_gang else said,
        preemption=view_preemption(found.preemption),
    )


def _describe(found: Prediction, store: Store) -> str:
    if found.verdict is not None:
        evicted = found.preemption.victims if isinstance(found.preemption, Preemption) else ()
        count = sum(len(unit.pods) for unit in evicted)
        cost = f"; it fits once {count_things(count, 'pod')} of lower priority {'has' if count == 1 else 'have'} ended"
        return render(found.verdict) + (cost if count else "")
    assert found.plan is not None  # noqa: S101 - narrows for the type checker: one of the two is there
    place = f" into {found.plan.domain}" if found.plan.domain else ""
    said = f"{len(found.plan.nodes)} of {found.members} members fit{place}"
    members = found.gang.members or store.members.classify(found.gang.group.key).waiting
    return "; ".join([said, *describe_uncounted(members, store)])
