"""Protects nodes on which a gang is about to start from removal by autoscalers (decision 59).

An autoscaler removes nodes on which no pods run. A node looks empty to it while its resources are reserved for members
that are not bound yet, or kept for the head of the queue. So such a node gets the annotations of
`serried.api.node.DO_NOT_REMOVE` for as long as that lasts, and a marker annotation that says which of them Serried has
set.

Nothing else is stored. Twice a second `NodeProtection.list_requeues` compares the nodes that are held now (`Ledger`,
`Feature.list_protected_nodes`) with the nodes that have the marker (`Store.protections`), and writes the differences in
the background. So the next leader removes the markers that an instance has left when it died.

    node is held ──── for 2 s ────▶ read the node ─▶ add missing annotations and the marker
    node is not held, has the marker ─▶ read the node ─▶ remove the marker and the annotations that it names

Each write has the resourceVersion of the read: if somebody has changed the node meanwhile, the API server rejects it.
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

_MIN_HELD_SECONDS = 2.0
"""The time for which a node must be held before it is protected.

So a gang that starts at once causes no writes to nodes.
"""

_TAKEOVER_SECONDS = 30.0
"""The time after the start of a term in which no protection is removed.

The head of the queue is not stored: the new leader finds it again once it has planned the waiting gangs.
"""

_MAX_WRITES = 16
"""The most nodes that are read and written at the same time. Bindings use the same connections."""

_RECHECK_SECONDS = 2.0
"""The pause before a written node is checked again. By then the watch has usually shown the write."""

_REJECTED_SECONDS = 60.0
"""The pause after a write that the API server has rejected: a right is missing, or an admission policy forbids it."""

_MAX_REJECTIONS = 3
"""The number of rejected writes in a row after which no node is written for ``_REJECTED_SECONDS``.

Then the cause concerns all nodes, for instance a missing right.
"""


class _Change(Enum):
    """The change that a node needs: to get the annotations that keep autoscalers from removing it, or to lose them."""

    PROTECT = "protect"
    UNPROTECT = "unprotect"


def _find_held_since(cycle: BindingCycle) -> float:
    """Return the loop time since which a binding cycle has held its nodes, i.e. reserved them for members.

    While members are being bound, that is the time of the last Binding. As long as Bindings succeed quickly, the nodes
    will soon have pods and need no protection.
    """
    return cycle.progressed if cycle.stage is CycleStage.BINDING else cycle.started


class NodeProtection(Feature):
    """Protects nodes that are reserved or kept for gangs from autoscalers, in the background.

    Only the leader writes.
    """

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

        self.write_error = ""
        """The error of the last write that the API server rejected; "" if there is none, or a later write succeeded."""

        self._logged_error = ""
        """The last ``write_error`` in the log, so that it is not logged for each node."""

        self._term_started = -math.inf
        """The start of the term, in loop seconds."""

        self._kept_since: dict[str, float] = {}
        """The nodes that features keep for gangs without a plan, and since when they do, in loop seconds."""

        self._changes: Mapping[str, _Change] = {}
        """The changes that nodes needed at the last comparison."""

        self._writing: object | None = None
        """An object that stands for the running round of writes; None if none is running.

        A round that finds another object here belongs to an ended term, and stops.
        """

        self._retry_after: dict[str, float] = {}
        """The nodes that were just written, or could not be, each with the loop time of the earliest next write."""

        self._paused_until = -math.inf
        """The loop time until which no node is written at all."""

        self._rejections = 0
        """The number of rejected writes in a row."""

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Start to write the nodes that should be protected and are not, or are protected and should not be.

        Nodes that are reserved or kept for gangs should be protected. The generator returns no gang.
        """
        self._start_writes(self._clock())
        yield from ()
        return ()

    def begin_term(self, now: float) -> None:
        """Note that a term starts: for 30 s, nodes stay protected that earlier leaders have protected.

        ``now`` is not used.
        """
        self._term_started = self._clock()

    def end_term(self) -> None:
        """Stop writing and forget everything, as another instance may lead from now on."""
        self._writing = None
        self._changes = {}
        self._kept_since.clear()
        self._retry_after.clear()
        self._paused_until = -math.inf
        self._rejections, self.write_error, self._logged_error = 0, "", ""

    # --- what differs ------------------------------------------------------------------------------------------

    def _start_writes(self, now: float) -> None:
        self._changes = self._find_changes(now)
        for name in [name for name, until in self._retry_after.items() if until <= now]:
            del self._retry_after[name]
        if self._writing is None and self._paused_until <= now:
            names = [name for name in self._changes if name not in self._retry_after]
            if names:
                self._writing = run = object()
                self._outbox.put(InBackground(lambda: self._write_all(run, names)))

    def _find_changes(self, now: float) -> dict[str, _Change]:
        """Return the changes that nodes need at the loop time ``now``, by node name, those to be protected first.

        Return none until it is known which autoscalers there are. Without any autoscaler, no node is to be protected.
        Only protections by this installation are removed, and none in the first 30 s of a term.
        """
        if not self._autoscalers.known:
            return {}
        held = self._list_held(now) if self._autoscalers.seen else {}
        due = {
            name: _Change.PROTECT
            for name, since in held.items()
            if now - since >= _MIN_HELD_SECONDS and name in self._store.nodes and not self._is_done(name)
        }
        if now - self._term_started >= _TAKEOVER_SECONDS:
            marked = self._store.protections.items()
            ours = (name for name, found in marked if found.installation == self._installation)
            due.update((name, _Change.UNPROTECT) for name in ours if name not in held)
        return due

    def _is_done(self, name: str) -> bool:
        """Return whether a node that is reserved or kept for a gang needs no write.

        That is so if it has all annotations that protect it, or if another installation of Serried protects it.
        """
        found = self._store.protections.get(name)
        return found is not None and (found.installation != self._installation or not found.missing)

    def _list_held(self, now: float) -> dict[str, float]:
        """Return the nodes that are reserved or kept for gangs, each with the loop time since which it is.

        The time is minus infinity for a reservation without a binding cycle.
        """
        kept = {
            name
            for feature in self._features[Feature.list_protected_nodes]
            if feature.busy
            for names in feature.list_protected_nodes()
            for name in names
        }
        self._kept_since = {name: self._kept_since.get(name, now) for name in kept}
        held = dict(self._kept_since)
        for reservation in self._ledger:
            gang = self._groups.states.get(reservation.group)
            since = _find_held_since(gang.cycle) if gang is not None and gang.cycle is not None else -math.inf
            for name in reservation.nodes:
                held[name] = min(since, held.get(name, math.inf))
        return held

    # --- writing -----------------------------------------------------------------------------------------------

    async def _write_all(self, run: object, names: Iterable[str]) -> None:
        turns = asyncio.Semaphore(_MAX_WRITES)

        async def write(name: str) -> None:
            async with turns:
                # The writes of many nodes take a while: by now the change may be unnecessary, or another one.
                change = self._changes.get(name)
                if change is not None and self._writing is run and self._paused_until <= self._clock():
                    await self._write(name, change)

        try:
            await do_each(names, write)
        finally:
            if self._writing is run:
                self._writing = None

    async def _write(self, name: str, change: _Change) -> None:
        """Read a node, and add or remove its protection. Errors are not raised: a later comparison tries again."""
        pause = _RECHECK_SECONDS
        try:
            await self._patch(name, protect if change is _Change.PROTECT else unprotect)
            self._rejections, self.write_error = 0, ""
        except (NotFound, Conflict, Fenced):
            pass  # deleted, changed by somebody, or this instance leads no more: the next comparison decides
        except (TooMany, Unavailable) as error:
            text = "could not change the annotations that keep autoscalers off a node; trying again"
            log.info(text, extra={"node": name, "err": str(error)})
        except ApiError as error:
            pause = _REJECTED_SECONDS
            self._note_rejected(name, str(error))
        finally:
            self._retry_after[name] = self._clock() + pause

    async def _patch(self, name: str, change: Callable[[Mapping[str, object], str], Mapping[str, str | None]]) -> None:
        # A list with one name instead of a get, as Serried has the right to list nodes, but not to get them.
        async for obj in self._client.items(NODES, Selection(fields=select_name(name))):
            metadata = read_map(obj, "metadata")
            annotations = change(read_map(metadata, "annotations"), self._installation)
            if annotations:
                version = metadata.get("resourceVersion")
                body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
                await self._client.patch_merge(NODES, "", name, body)

    def _note_rejected(self, name: str, why: str) -> None:
        self._rejections += 1
        if self._rejections >= _MAX_REJECTIONS:
            self._paused_until = self._clock() + _REJECTED_SECONDS
        if not self.write_error and why != self._logged_error:
            self._logged_error = why
            log.error("cannot protect nodes from removal by autoscalers", extra={"node": name, "err": why})
        self.write_error = why
