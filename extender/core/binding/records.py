"""The Reservation object: the durable side of the ledger, one object a gang, written only by whoever leads."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import orjson

from serried.api.group import PodGroup
from serried.api.names import GroupKey, Key
from serried.api.reservation import (
    MAX_RECORD_BYTES,
    Reservation,
    decode_reservation,
    encode_reservation,
    find_later_format,
    name_record,
)
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, TooMany, Unavailable
from serried.kube.many import do_each
from serried.kube.retry import Attempts, Backoff
from serried.kube.wire import JSON, RESERVATIONS, Failure
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_MAX_WRITES = 16
"""How many records are taken over at the same time."""

_MAX_FAILURES = 3
"""How many failures to take one record over are outlasted; all that wait for the new leader wait for this."""

_RETRY = Backoff(first=0.5, cap=2.0)

_REMOVAL = Backoff(first=0.2, cap=5.0)

_MAX_LEFT = 100
"""How many finished records may wait for an idle moment: a takeover writes each of them."""

_LEFT_SECONDS = 10.0
"""How long they may wait."""

_LOOK_SECONDS = 0.25
"""How often it is looked whether the moment has come."""

_STOP_SECONDS = 1.0
"""How long the end of the process may wait until they are deleted."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The object as it was seen last: every write and every delete names both."""

    uid: str

    version: str
    """Its resourceVersion."""


@dataclass(slots=True, eq=False)
class Records:
    """Writes and reads Reservation objects, each by compare-and-swap on the version it has seen last.

    Writes of one group are strictly one after the other: a cycle that ends while its record is being written must
    not have its delete overtake the write. Every record names the term that has written it. An instance that has lost
    its Lease writes and deletes nothing. What slips through meets another version, because the next leader writes its
    own term first, or the commit of that leader, because there is one record a gang.
    """

    _client: ApiClient
    _group_version: str

    _instance: str
    """What the name of the term begins with; the number of this process's turn follows."""

    _leads: Callable[[], bool] = lambda: True
    """Asked before each write."""

    _composite_version: str = ""

    contested: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when another term was seen to have committed what this one has not taken over: two are active at once."""

    _terms: int = field(default=0, init=False)
    """How many terms this process has begun."""

    _seen: dict[GroupKey, _Seen] = field(default_factory=dict, init=False)
    """The objects that there are, as far as is known."""

    _unsure: set[GroupKey] = field(default_factory=set, init=False)
    """Groups of which a write had no answer: it may have happened or not."""

    _latest: dict[GroupKey, Reservation] = field(default_factory=dict, init=False)
    """What was to be written last."""

    _locks: WeakValueDictionary[GroupKey, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    @property
    def term(self) -> str:
        """Who writes, and since which turn."""
        return f"{self._instance}/{self._terms}"

    async def write(self, group: PodGroup, reservation: Reservation) -> None:
        """Create or replace the record. Raises ApiError if the API server did not take it, or did not say.

        Conflict if somebody else's term has it by now, or if this instance does not lead. Invalid if it is
        too large for the API server, or has come back without its members.
        """
        key = reservation.group
        async with self._lock(key):
            self._check_term(f"write Reservation {key}")
            self._latest[key] = reservation
            if key in self._unsure:
                await self._look_before_write(key)
            body = self._body(group, reservation)
            _check_size(key, reservation, body)
            # Until the answer is here the write may have happened or not, and our version may be outdated.
            self._unsure.add(key)
            written = await (self._create(key, body) if key not in self._seen else self._replace(key, body))
            self._note(key, written)
            _check_kept(key, body, written)

    async def may_read(self) -> bool:
        """Whether the API server serves Reservations and lets this process read them; yes if it does not say."""
        try:
            await self._client.page(RESERVATIONS.path(), {"limit": "1"})
        except (NotFound, Forbidden):
            return False
        except ApiError:
            return True
        return True

    def check_size(self, group: PodGroup, reservation: Reservation) -> None:
        """Raises Invalid if its record would be too large for the API server."""
        _check_size(reservation.group, reservation, self._body(group, reservation))

    async def _create(self, key: GroupKey, body: JSON) -> JSON:
        try:
            return await self._client.create(RESERVATIONS, key.namespace, body)
        except AlreadyExists:
            # Of a term that led beside this one, or whose write was late: nobody may be there to delete it.
            await self._look_before_write(key)
            if key not in self._seen:
                raise
            return await self._replace(key, body)

    async def _replace(self, key: GroupKey, body: JSON) -> JSON:
        seen = self._seen[key]
        metadata = {**body["metadata"], "uid": seen.uid, "resourceVersion": seen.version}
        return await self._client.replace(RESERVATIONS, {**body, "metadata": metadata})

    def _check_term(self, what: str) -> None:
        if not self._leads():
            raise Conflict(what, Failure(409, "NotLeading", "this instance does not lead any more"))

    async def _look_before_write(self, key: GroupKey) -> None:
        found = await self._look(key)
        self._check_term(f"write Reservation {key}")  # the look took its time
        if found is not None and _term_of(found) != self.term and _is_committed(found):
            self.contested.set()
            raise Conflict(f"write Reservation {key}", Failure(409, "OtherTerm", f"{_term_of(found)} has committed it"))
        if found is not None:
            self._note(key, found)

    async def is_committed(self, reservation: Reservation) -> bool:
        """Whether the API server holds this very commit: of this term, the same members on the same nodes.

        Raises ApiError.
        """
        async with self._lock(reservation.group):
            raw = await self._look(reservation.group)
        if raw is None or _term_of(raw) != self.term:
            return False
        self._note(reservation.group, raw)
        found = decode_reservation(raw)
        if found is None or found.committed != reservation.committed:
            return False
        ours, theirs = reservation.slots, found.slots
        committed = found.committed & theirs.keys()  # the others may have changed slots meanwhile
        return all(uid in ours and theirs[uid].node == ours[uid].node for uid in committed)

    async def _look(self, key: GroupKey) -> JSON | None:
        """The record as the API server has it. Whose it is the caller has to see before it is noted as ours."""
        try:
            return await self._client.get(RESERVATIONS, key.namespace, name_record(key))
        except NotFound:
            self._seen.pop(key, None)  # a write without an answer may still come, so the group stays unsure
            return None

    def _note(self, key: GroupKey, written: Mapping[str, Any]) -> None:
        self._seen[key] = _read_seen(written)
        self._unsure.discard(key)

    def _forget(self, key: GroupKey) -> None:
        self._seen.pop(key, None)
        self._unsure.discard(key)

    def _lock(self, key: GroupKey) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = asyncio.Lock()
            self._locks[key] = lock
        return lock

    async def remove(self, reservation: Reservation) -> None:
        """Delete the record of this reservation; one that is gone already is fine. Raises ApiError.

        Nothing happens if the group's record says something newer by now, the next cycle's plan or another term's, or
        if this instance does not lead: then it is the next leader's to judge.
        """
        key = reservation.group
        async with self._lock(key):
            if self._latest.get(key) is not reservation or not self._leads():
                return
            seen = await self._find_own(key) if key in self._unsure else self._seen.get(key)
            if seen is not None and self._leads() and not await self._delete(key.namespace, name_record(key), seen):
                seen = await self._find_own(key)  # somebody else may have put a label on it
                if seen is not None and self._leads():
                    await self._delete(key.namespace, name_record(key), seen)
            self._forget(key)
            self._latest.pop(key, None)

    async def _find_own(self, key: GroupKey) -> _Seen | None:
        raw = await self._look(key)
        return _read_seen(raw) if raw is not None and _term_of(raw) == self.term else None

    async def _delete(self, namespace: str, name: str, seen: _Seen) -> bool:
        """Whether it was as it has been seen; if not, it is gone, or somebody else's by now."""
        try:
            await self._client.delete(RESERVATIONS, namespace, name, seen.uid, seen.version)
        except (NotFound, Conflict):
            return False
        return True

    async def take_over(
        self, confine: Callable[[Reservation], Reservation] = lambda record: record
    ) -> list[Reservation]:
        """Every record there is, at the start of a term: each is this term's from now on. Raises ApiError.

        ``confine`` gives what counts of a record that was read.

        Each is written with the new term, and so with a new version, before anybody acts on it: whatever an earlier
        leader still sends for it is refused. A record that cannot be read is deleted, but not one of a later release,
        which may be committed: Invalid says so, and nothing is written. One that the API server lets nobody write, or
        delete, stops no other: its reservation is taken as it is, and each later write or delete of it is another try.
        Conflict if this instance does not lead any more: what the next leader has taken over is not taken back.
        """
        self._terms += 1
        self._seen.clear()
        self._unsure.clear()
        self._latest.clear()
        few = asyncio.Semaphore(_MAX_WRITES)

        async def take(item: JSON) -> Reservation | None:
            async with few:
                return await self._take(item, confine)

        items = await self._client.list_all(RESERVATIONS)
        for item in items:
            _check_format(item)  # before any is written: as long as one is there, this is asked again and again
        tasks = [asyncio.create_task(take(item)) for item in items]
        try:
            taken = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # if one has failed, the others must not go on beside the next attempt
        return [reservation for reservation in taken if reservation is not None]

    async def _take(self, item: JSON, confine: Callable[[Reservation], Reservation]) -> Reservation | None:
        found: JSON | None = item
        attempts = Attempts(_RETRY)
        while found is not None:
            self._check_term(f"take over Reservation {found['metadata']['name']}")
            meta = found["metadata"]
            _check_format(found)
            reservation = decode_reservation(found)
            key = Key(meta["namespace"], meta["name"])
            if reservation is None or name_record(reservation.group) != meta["name"]:
                await self._drop_unreadable(key, found)
                return None
            if _term_of(found) == self.term:  # our own write
                reservation = confine(reservation)
                self._note(reservation.group, found)
                self._latest[reservation.group] = reservation
                return reservation
            claimed = None
            try:
                claimed = await self._claim(found)
            except ApiError as error:
                _pass_over(key, "a Reservation cannot be written", error)
                reservation = confine(reservation)
                if isinstance(error, TooMany | Unavailable) and attempts.failures < _MAX_FAILURES:
                    await attempts.rest(error.retry_after or 0.0)
                elif await self._hold_unclaimed(key, found, reservation):
                    return reservation
            found = claimed or await self._read_again(key)
        return None

    async def _drop_unreadable(self, key: Key, found: JSON) -> None:
        try:
            await self._delete(key.namespace, key.name, _read_seen(found))
        except ApiError as error:
            _pass_over(key, "a Reservation that cannot be read cannot be deleted", error)

    async def _hold_unclaimed(self, key: Key, found: JSON, reservation: Reservation) -> bool:
        """Go by a record without our term in it; False if it has changed, or gone, since it was read."""
        again = await self._read_again(key)  # an error of the API server does not say that nothing was written
        if again is None or _read_seen(again) != _read_seen(found):
            return False
        self._note(reservation.group, found)
        if not reservation.committed:
            # Without the record of its plan no earlier leader can commit that. We can: another one is written then.
            try:
                if not await self._delete(key.namespace, key.name, _read_seen(found)):
                    return False
                self._forget(reservation.group)
            except ApiError as error:
                _pass_over(key, "a Reservation can be neither written nor deleted", error)
        self._latest[reservation.group] = reservation
        return True

    async def _claim(self, found: JSON) -> JSON | None:
        """The record with our term in it; None if it has changed, or gone, since it was read."""
        try:
            return await self._client.replace(RESERVATIONS, {**found, "spec": {**found["spec"], "term": self.term}})
        except (Conflict, NotFound):
            return None

    async def _read_again(self, record: Key) -> JSON | None:
        try:
            return await self._client.get(RESERVATIONS, record.namespace, record.name)
        except NotFound:
            return None

    def _body(self, group: PodGroup, reservation: Reservation) -> dict[str, Any]:
        holder = group.holder(self._group_version, self._composite_version)
        owner = {"apiVersion": holder.api_version, "kind": holder.kind, "name": holder.name, "uid": group.uid}
        return {
            "apiVersion": RESERVATIONS.api_version,
            "kind": "Reservation",
            "metadata": {
                "name": name_record(group.key),
                "namespace": group.key.namespace,
                "ownerReferences": [owner] if holder.name else [],
                "labels": {"app.kubernetes.io/managed-by": "serried"},
            },
            "spec": encode_reservation(reservation, self.term),
        }


class FinishedRecords:
    """Deletes records that nobody needs any more, at once or, so that it competes with no Binding, in idle moments.

    ``spawn`` begins a task that ends with the term; ``is_busy`` is whether a plan is held.
    """

    def __init__(
        self,
        records: Records,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock: Callable[[], float],
        is_busy: Callable[[], bool],
    ) -> None:
        self._records = records
        self._spawn = spawn
        self._clock = clock
        self._is_busy = is_busy
        self._left: dict[GroupKey, tuple[Reservation, float]] = {}
        """Those that wait, the oldest first, and by when each is deleted, in loop seconds."""

        self._removing = False
        """Whether a task sees to them."""

        self._changed = asyncio.Event()

    def look_again(self) -> None:
        """A plan has ended: it may have been the last one for which they wait."""
        self._changed.set()

    def end_term(self) -> None:
        """What waits is the next leader's."""
        self._left.clear()
        self._removing = False

    async def remove(self, reservation: Reservation) -> None:
        """Delete a record, or have it tried again: nobody waits for that, and the next write replaces it."""
        try:
            await self._records.remove(reservation)
        except ApiError:
            self._spawn(self._remove_stubborn(reservation))

    async def remove_later(self, reservation: Reservation) -> None:
        """Delete it in an idle moment, but soon. If too many wait, the oldest is deleted now."""
        if not self._removing:
            self._removing = True
            self._spawn(self._remove_left())
        self._left[reservation.group] = reservation, self._clock() + _LEFT_SECONDS
        if len(self._left) > _MAX_LEFT:
            await self.remove(self._left.pop(next(iter(self._left)))[0])

    async def remove_of(self, group: GroupKey) -> None:
        """Delete what waits of a gang that comes again."""
        left = self._left.pop(group, None)
        if left is not None:
            await self.remove(left[0])

    async def remove_all(self) -> None:
        """Delete all that wait, at the end of the process; what is not done soon is the next leader's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await do_each([reservation for reservation, _ in self._left.values()], self._remove_once)

    async def _remove_once(self, reservation: Reservation) -> None:
        with suppress(ApiError):
            await self._records.remove(reservation)

    async def _remove_left(self) -> None:
        try:
            while self._left:
                group, (reservation, due) = next(iter(self._left.items()))
                if self._is_busy() and self._clock() < due:
                    self._changed.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)
                    continue
                try:
                    await self.remove(reservation)
                finally:
                    if group in self._left and self._left[group][0] is reservation:
                        del self._left[group]
        finally:
            self._removing = False

    async def _remove_stubborn(self, reservation: Reservation) -> None:
        async for _ in Attempts(_REMOVAL):
            try:
                await self._records.remove(reservation)
            except ApiError as error:
                # If it stays, the next write of this group replaces it, or its owner reference takes it away.
                log.warning(
                    "cannot delete a Reservation yet", extra=name_group(reservation.group) | {"err": str(error)}
                )
            else:
                return


def _pass_over(record: Key, what: str, error: ApiError) -> None:
    """Say what the API server refuses of one record, which stops no other.

    Raises the error if nobody has answered, or this instance does not lead: that is no fault of the record.
    """
    if not error.status:
        raise error
    log.warning(what, extra={"record": str(record), "err": str(error)})


def _check_format(record: Mapping[str, Any]) -> None:
    later = find_later_format(record)
    if later is not None:
        name = f"{record['metadata']['namespace']}/{record['metadata']['name']}"
        said = f"its format is {later}, which only a later release can read; run that one, or delete the Reservation"
        raise Invalid(f"read Reservation {name}", Failure(422, "RecordOfLaterRelease", said))


def _check_size(key: GroupKey, reservation: Reservation, body: Mapping[str, Any]) -> None:
    size = len(orjson.dumps(body))
    if size > MAX_RECORD_BYTES:
        said = (
            f"the record of {len(reservation.slots)} members would have {size:,} bytes, and the API server takes no "
            f"more than {MAX_RECORD_BYTES:,}; it needs fewer members, or shorter names of pods and nodes"
        )
        raise Invalid(f"write Reservation {key}", Failure(413, "RecordTooLarge", said))


def _check_kept(key: GroupKey, body: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """A CRD of an older release drops what it does not know, without a word: a restart would find no members."""
    if "packed" in body["spec"] and "packed" not in written["spec"]:
        said = "the CustomResourceDefinition of Reservations has no field packed; apply the CRDs of this release"
        raise Invalid(f"write Reservation {key}", Failure(422, "RecordNotKept", said))


def _read_seen(record: Mapping[str, Any]) -> _Seen:
    meta = record["metadata"]
    return _Seen(str(meta.get("uid", "")), str(meta["resourceVersion"]))


def _term_of(record: Mapping[str, Any]) -> str:
    return str(record["spec"].get("term", ""))


def _is_committed(record: Mapping[str, Any]) -> bool:
    return bool(record["spec"].get("phase") == "Committed")
