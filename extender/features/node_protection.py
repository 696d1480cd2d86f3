"""Nodes that autoscalers must not remove, because a gang is about to start there (decision 59).

An autoscaler counts the pods that run on a node. A node whose room is reserved for members that are not bound yet looks
empty to it, and so does one that is kept for the first gang of the queue. So such a node carries the annotations of
`serried.api.node.KEEPS_NODE` for as long as that lasts, and a marker that says which of them Serried has set.

There is no other record. `NodeProtection.hints` compares, twice a second, the nodes that are held now (`Ledger`,
`Feature.list_kept`) with the nodes that carry the marker (`Store.protections`), and writes the difference in the
background. The markers of an instance that has died are a difference like any other for the next leader.

    node is held ──── for 2 s ────▶ read the node ─▶ add what is missing, and the marker
    node is not held, has our marker ─▶ read the node ─▶ remove the marker, and what it names

Every write has the resourceVersion of what was read: what somebody else has set meanwhile is never overwritten.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from extender.core.feature import Feature
from extender.core.parts import Parts
from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.effects import InBackground
from serried.api.names import GroupKey, read_map
from serried.api.node import protect, unprotect
from serried.kube.errors import ApiError, Conflict, Fenced, NotFound, TooMany, Unavailable
from serried.kube.many import do_each
from serried.kube.wire import NODES, Selection, select_name
from serried.ops.steps import Work

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 2.0
"""For how long a node must be held before it is protected: a gang that starts at once costs no writes."""

_TAKEOVER_SECONDS = 30.0
"""For how long after the begin of a term no protection ends.

The head of the queue is memory only: the new leader finds it again once it has planned the gangs that wait.
"""

_AT_A_TIME = 16
"""The number of nodes that are read and written at a time. Bindings go over the same connections."""

_REST_SECONDS = 2.0
"""The pause before a node is looked at again that was written, so that the watch has shown it by then, or not yet."""

_REFUSED_SECONDS = 60.0
"""The pause after a write that the API server has refused: a right is missing, or a policy forbids it."""

_MAX_REFUSALS = 3
"""After so many refusals in a row no node is tried for as long: the right is missing for all of them."""


class _Change(Enum):
    """The change that the annotations of a node need."""

    PROTECT = "protect"
    UNPROTECT = "unprotect"


def _date(cycle: BindingCycle) -> float:
    """Return since when a cycle has held its nodes, in loop seconds.

    While its Bindings are sent, since the last one that stood: the next nodes are about to look used.
    """
    return cycle.progressed if cycle.stage is CycleStage.BINDING else cycle.started


class NodeProtection(Feature):
    """Protects nodes from autoscalers, in the background. One of a term writes at a time."""

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._autoscalers = parts.autoscalers
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._features = context.features
        self._outbox = context.outbox
        self._clock = context.clock
        self._installation = context.installation
        self._client = parts.client

        self.obstacle = ""
        """The reason why the API server has refused the last write; "" if it has not."""

        self._logged = ""
        """The obstacle that was logged last."""

        self._begun = -math.inf
        """The begin of the term, in loop seconds."""

        self._kept_since: dict[str, float] = {}
        """The nodes that features keep for gangs without a plan, and since when they do, in loop seconds."""

        self._due: Mapping[str, _Change] = {}
        """The changes that nodes needed at the last look."""

        self._writing: object | None = None
        """Stands for the run of writes that goes on, None for none: a run of an ended term has another one."""

        self._rests: dict[str, float] = {}
        """Until when each node is left alone that was written, or could not be, in loop seconds."""

        self._rest = -math.inf
        """The time until which no node is written at all, in loop seconds."""

        self._refusals = 0
        """The number of writes refused in a row."""

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Have the protection of nodes changed where it differs from what is held; return no gang."""
        self._review(self._clock())
        yield from ()
        return ()

    def begin_term(self, now: float) -> None:
        """Begin to lead: nodes that earlier leaders protected stay protected until the queue is known again."""
        self._begun = self._clock()

    def end_term(self) -> None:
        """Another instance may lead from now on."""
        self._writing = None
        self._due = {}
        self._kept_since.clear()
        self._rests.clear()
        self._rest = -math.inf
        self._refusals, self.obstacle, self._logged = 0, "", ""

    # --- what differs ------------------------------------------------------------------------------------------

    def _review(self, now: float) -> None:
        self._due = self._compare(now)
        for name in [name for name, until in self._rests.items() if until <= now]:
            del self._rests[name]
        if self._writing is None and self._rest <= now:
            names = [name for name in self._due if name not in self._rests]
            if names:
                self._writing = run = object()
                self._outbox.put(InBackground(lambda: self._write_all(run, names)))

    def _compare(self, now: float) -> dict[str, _Change]:
        """Return the nodes whose protection is to change, those to be protected first."""
        if not self._autoscalers.known:
            return {}
        held = self._list_held(now) if self._autoscalers.seen else {}
        due = {
            name: _Change.PROTECT
            for name, since in held.items()
            if now - since >= _PATIENCE_SECONDS and name in self._store.nodes and not self._is_protected(name)
        }
        if now - self._begun >= _TAKEOVER_SECONDS:
            marked = self._store.protections.items()
            ours = (name for name, found in marked if found.installation == self._installation)
            due.update((name, _Change.UNPROTECT) for name in ours if name not in held)
        return due

    def _is_protected(self, name: str) -> bool:
        """Return whether nothing is to be done for a node. Where another installation protects it, nothing is."""
        found = self._store.protections.get(name)
        return found is not None and (found.installation != self._installation or not found.missing)

    def _list_held(self, now: float) -> dict[str, float]:
        """Return the nodes that are held for gangs, and since when, in loop seconds; the earliest gang counts."""
        kept = {
            name
            for feature in self._features[Feature.list_kept]
            if feature.busy
            for names in feature.list_kept()
            for name in names
        }
        self._kept_since = {name: self._kept_since.get(name, now) for name in kept}
        held = dict(self._kept_since)
        for reservation in self._ledger:
            gang = self._groups.states.get(reservation.group)
            since = _date(gang.cycle) if gang is not None and gang.cycle is not None else -math.inf
            for name in reservation.nodes:
                held[name] = min(since, held.get(name, math.inf))
        return held

    # --- writing -----------------------------------------------------------------------------------------------

    async def _write_all(self, run: object, names: Iterable[str]) -> None:
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def write(name: str) -> None:
            async with turns:
                # Many nodes take a while: by now it may be over, or changed.
                change = self._due.get(name)
                if change is not None and self._writing is run and self._rest <= self._clock():
                    await self._write(name, change)

        try:
            await do_each(names, write)
        finally:
            if self._writing is run:
                self._writing = None

    async def _write(self, name: str, change: _Change) -> None:
        """Change the protection of one node, as the API server has it now. What fails is tried again."""
        rest = _REST_SECONDS
        try:
            await self._patch(name, protect if change is _Change.PROTECT else unprotect)
            self._refusals, self.obstacle = 0, ""
        except (NotFound, Conflict, Fenced):
            pass  # it is gone, or somebody has changed it: the next look knows
        except (TooMany, Unavailable) as error:
            text = "could not change the annotations that keep autoscalers off a node; trying again"
            log.info(text, extra={"node": name, "err": str(error)})
        except ApiError as error:
            rest = _REFUSED_SECONDS
            self._note_refused(name, str(error))
        finally:
            self._rests[name] = self._clock() + rest

    async def _patch(self, name: str, change: Callable[[Mapping[str, object], str], Mapping[str, str | None]]) -> None:
        # A list of one name, as OwnerLookup has it: the right to list is the one that there is.
        async for obj in self._client.items(NODES, Selection(fields=select_name(name))):
            metadata = read_map(obj, "metadata")
            annotations = change(read_map(metadata, "annotations"), self._installation)
            if annotations:
                version = metadata.get("resourceVersion")
                body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
                await self._client.patch_merge(NODES, "", name, body)

    def _note_refused(self, name: str, why: str) -> None:
        self._refusals += 1
        if self._refusals >= _MAX_REFUSALS:
            self._rest = self._clock() + _REFUSED_SECONDS
        if not self.obstacle and why != self._logged:
            self._logged = why
            log.error("cannot protect nodes from autoscalers", extra={"node": name, "err": why})
        self.obstacle = why
