"""Reads, writes and deletes the records, i.e. the ledger's reservations as Reservation objects, one per gang.

`CycleRunner` writes through `Records`, `Recovery` takes all records over at the start of a term, and `FinishedRecords`
deletes records that are not needed any more.
"""

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
"""The maximum number of records that are taken over at the same time, i.e. written with the name of the new term."""

_MAX_FAILURES = 3
"""After how many failed writes a record is accepted as it is, without the name of the new term.

A new leader plans no gang before that, so the number is small.
"""

_RETRY = Backoff(first=0.5, cap=2.0)

_REMOVAL = Backoff(first=0.2, cap=5.0)

_MAX_WAITING = 100
"""The maximum number of finished records that wait to be deleted. A new leader has to write each of them."""

_MAX_WAIT_SECONDS = 10.0
"""The longest time for which a finished record waits to be deleted, in seconds."""

_CHECK_SECONDS = 0.25
"""The period in which it is checked whether finished records may be deleted, in seconds."""

_STOP_SECONDS = 1.0
"""For how many seconds the end of the process waits until finished records are deleted."""


@dataclass(frozen=True, slots=True)
class _ObjectVersion:
    """The UID and resourceVersion of a Reservation object when this process last read or wrote it.

    They are the precondition of the next write or delete.
    """

    uid: str

    version: str
    """The resourceVersion."""


@dataclass(slots=True, eq=False)
class Records:
    """Writes and reads Reservation objects, and only changes an object in its last known resourceVersion.

    One instance per process. Writes for one gang are serialized, so that the delete at the end of a cycle cannot
    overtake an earlier write. Every record names the term that has written it. An instance that has lost its Lease
    writes and deletes nothing. A write that is already on its way then fails: the next leader has changed the version
    by writing its own term into the record, and each gang has one record only.
    """

    _client: ApiClient
    _group_version: str

    _instance: str
    """The name of this instance. A term's name is this and the number of the term in this process, e.g. "a/3"."""

    _leads: Callable[[], bool] = lambda: True
    """Returns whether this instance leads. Called before each write and delete."""

    _composite_version: str = ""

    contested: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the API server has a record that another term has committed during this one.

    Two instances are active then. The reader of the event begins a new term, and clears it.
    """

    _terms: int = field(default=0, init=False)
    """The number of terms that this process has begun."""

    _seen: dict[GroupKey, _ObjectVersion] = field(default_factory=dict, init=False)
    """The last known version of the record of each gang; no entry if it has none, as far as is known."""

    _unsure: set[GroupKey] = field(default_factory=set, init=False)
    """The gangs with a write that the API server has not answered, so that it may have happened or not."""

    _latest: dict[GroupKey, Reservation] = field(default_factory=dict, init=False)
    """The reservation that was last written for each gang, or that this process last tried to write."""

    _locks: WeakValueDictionary[GroupKey, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    @property
    def term(self) -> str:
        """The name of the present term, unique among all processes and terms."""
        return f"{self._instance}/{self._terms}"

    async def write(self, group: PodGroup, reservation: Reservation) -> None:
        """Create or replace the record of a gang, with ``reservation`` as its content.

        ``group`` is the gang's PodGroup, which becomes the owner of the record. Raise ApiError if the API server has
        rejected the write or not answered; among them Conflict if another term has written the record since, or if this
        instance does not lead, and Invalid if the record is too large for the API server, or if the cluster's CRD of
        Reservations is too old to store the members.
        """
        key = reservation.group
        async with self._lock(key):
            self._check_term(f"write Reservation {key}")
            self._latest[key] = reservation
            if key in self._unsure:
                await self._read_before_write(key)
            body = self._body(group, reservation)
            _check_size(key, reservation, body)
            # Until the answer is here the write may have happened or not, and the known version may be outdated.
            self._unsure.add(key)
            written = await (self._create(key, body) if key not in self._seen else self._replace(key, body))
            self._note(key, written)
            _check_stored(key, body, written)

    async def may_read(self) -> bool:
        """Return whether this process may read Reservations.

        False if its role or the CRD is missing; True also if the API server does not answer.
        """
        try:
            await self._client.page(RESERVATIONS.path(), {"limit": "1"})
        except (NotFound, Forbidden):
            return False
        except ApiError:
            return True
        return True

    def check_size(self, group: PodGroup, reservation: Reservation) -> None:
        """Raise Invalid if the record of this reservation would be too large for the API server. Write nothing."""
        _check_size(reservation.group, reservation, self._body(group, reservation))

    async def _create(self, key: GroupKey, body: JSON) -> JSON:
        try:
            return await self._client.create(RESERVATIONS, key.namespace, body)
        except AlreadyExists:
            # The record is from another active term or from a late write, and that process may not delete it.
            await self._read_before_write(key)
            if key not in self._seen:
                raise
            return await self._replace(key, body)

    async def _replace(self, key: GroupKey, body: JSON) -> JSON:
        seen = self._seen[key]
        metadata = {**body["metadata"], "uid": seen.uid, "resourceVersion": seen.version}
        return await self._client.replace(RESERVATIONS, {**body, "metadata": metadata})

    def _check_term(self, what: str) -> None:
        if not self._leads():
            raise Conflict(what, Failure(409, "NotLeading", "this instance no longer leads"))

    async def _read_before_write(self, key: GroupKey) -> None:
        found = await self._read(key)
        self._check_term(f"write Reservation {key}")  # the term may have ended during the read
        if found is not None and _term_of(found) != self.term and _is_committed(found):
            self.contested.set()
            raise Conflict(f"write Reservation {key}", Failure(409, "OtherTerm", f"{_term_of(found)} has committed it"))
        if found is not None:
            self._note(key, found)

    async def is_committed(self, reservation: Reservation) -> bool:
        """Return whether the API server has stored the commit of this reservation, after a write with unclear result.

        The stored record must be of this term, and have the same committed members on the same nodes. Raise ApiError if
        the API server does not answer.
        """
        async with self._lock(reservation.group):
            raw = await self._read(reservation.group)
        if raw is None or _term_of(raw) != self.term:
            return False
        self._note(reservation.group, raw)
        found = decode_reservation(raw)
        if found is None or found.committed != reservation.committed:
            return False
        ours, theirs = reservation.slots, found.slots
        committed = found.committed & theirs.keys()  # the others may have changed slots meanwhile
        return all(uid in ours and theirs[uid].node == ours[uid].node for uid in committed)

    async def _read(self, key: GroupKey) -> JSON | None:
        """Return the record of a gang as the API server has it; None if there is none. Raise ApiError.

        Another term may have written it. The caller has to check that before it notes the record's version as written
        by this term (`_note`): later writes and deletes then accept that version.
        """
        try:
            return await self._client.get(RESERVATIONS, key.namespace, name_record(key))
        except NotFound:
            self._seen.pop(key, None)  # an unanswered write may still arrive, so the group stays unsure
            return None

    def _note(self, key: GroupKey, written: Mapping[str, Any]) -> None:
        self._seen[key] = _read_version(written)
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
        """Delete the record of this reservation, if it still exists. Raise ApiError.

        Does nothing if the gang has a newer record, of its next cycle or another term. Also does nothing if this
        instance does not lead: then the next leader decides about the record.
        """
        key = reservation.group
        async with self._lock(key):
            if self._latest.get(key) is not reservation or not self._leads():
                return
            seen = await self._find_own(key) if key in self._unsure else self._seen.get(key)
            if seen is not None and self._leads() and not await self._delete(key.namespace, name_record(key), seen):
                seen = await self._find_own(key)  # another client may have changed it, for example its labels
                if seen is not None and self._leads():
                    await self._delete(key.namespace, name_record(key), seen)
            self._forget(key)
            self._latest.pop(key, None)

    async def _find_own(self, key: GroupKey) -> _ObjectVersion | None:
        raw = await self._read(key)
        return _read_version(raw) if raw is not None and _term_of(raw) == self.term else None

    async def _delete(self, namespace: str, name: str, seen: _ObjectVersion) -> bool:
        """Delete a record if its version is still ``seen``. Return False if it was changed or deleted since.

        Raise ApiError for any other failure.
        """
        try:
            await self._client.delete(RESERVATIONS, namespace, name, seen.uid, seen.version)
        except (NotFound, Conflict):
            return False
        return True

    async def take_over(
        self, restrict: Callable[[Reservation], Reservation] = lambda record: record
    ) -> list[Reservation]:
        """Begin a new term, and take over all records in the cluster. Return their reservations.

        ``restrict`` returns the part of a record's reservation that is to be used; all of it by default. Each record is
        written with the name of the new term, so that a late write of an earlier leader fails. A record that cannot be
        decoded is deleted. If the API server does not let this process write or delete a record, its reservation is
        returned all the same, and later writes and deletes try again.

        Raise ApiError if the API server does not answer; Conflict if this instance no longer leads; and Invalid,
        before any write, if a record has the format of a later release: it may be committed.
        """
        self._terms += 1
        self._seen.clear()
        self._unsure.clear()
        self._latest.clear()
        few = asyncio.Semaphore(_MAX_WRITES)

        async def take(item: JSON) -> Reservation | None:
            async with few:
                return await self._take_over_one(item, restrict)

        items = await self._client.list_all(RESERVATIONS)
        for item in items:
            _check_format(item)  # before any write, because the takeover is retried while such a record exists
        tasks = [asyncio.create_task(take(item)) for item in items]
        try:
            taken = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # after a failure the others must not run beside the next attempt
        return [reservation for reservation in taken if reservation is not None]

    async def _take_over_one(self, item: JSON, restrict: Callable[[Reservation], Reservation]) -> Reservation | None:
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
            if _term_of(found) == self.term:  # this term's own write
                reservation = restrict(reservation)
                self._note(reservation.group, found)
                self._latest[reservation.group] = reservation
                return reservation
            renewed = None
            try:
                renewed = await self._write_term(found)
            except ApiError as error:
                _log_rejection(key, "a Reservation cannot be written", error)
                reservation = restrict(reservation)
                if isinstance(error, TooMany | Unavailable) and attempts.failures < _MAX_FAILURES:
                    await attempts.rest(error.retry_after or 0.0)
                elif await self._accept_unwritten(key, found, reservation):
                    return reservation
            found = renewed or await self._read_again(key)
        return None

    async def _drop_unreadable(self, key: Key, found: JSON) -> None:
        try:
            await self._delete(key.namespace, key.name, _read_version(found))
        except ApiError as error:
            _log_rejection(key, "a Reservation that cannot be read cannot be deleted", error)

    async def _accept_unwritten(self, key: Key, found: JSON, reservation: Reservation) -> bool:
        """Accept a record although the API server did not let this process write the name of this term into it.

        Return True if it is accepted: its ``reservation`` is used from now on. If the record is not committed, it is
        deleted if possible, so that no earlier leader can commit it. If it is committed, it stays as it is.

        Return False if the record has changed since it was read as ``found``: the caller has to read it again.
        """
        again = await self._read_again(key)  # after an error the write may have happened all the same
        if again is None or _read_version(again) != _read_version(found):
            return False
        self._note(reservation.group, found)
        if not reservation.committed:
            # Without the record no earlier leader can commit the plan. This term writes a new one when it commits.
            try:
                if not await self._delete(key.namespace, key.name, _read_version(found)):
                    return False
                self._forget(reservation.group)
            except ApiError as error:
                _log_rejection(key, "a Reservation can be neither written nor deleted", error)
        self._latest[reservation.group] = reservation
        return True

    async def _write_term(self, found: JSON) -> JSON | None:
        """Write the name of this term into the record ``found``. Return the new object.

        None if the record was changed or deleted since it was read. Raise ApiError for other failures.
        """
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
        holder = group.object_reference(self._group_version, self._composite_version)
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
    """Deletes records that are not needed any more: at once, or later while no gang is being bound.

    Deletes that are sent later do not delay Bindings. ``records`` deletes the objects, ``spawn`` starts a task
    that ends with the term, ``clock`` gives loop seconds, and ``is_busy`` returns whether any gang has a reservation.
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
        self._waiting: dict[GroupKey, tuple[Reservation, float]] = {}
        """The records that wait to be deleted, oldest first, with the loop time at which each is deleted at the latest.

        By the key of the gang.
        """

        self._removing = False
        """True while a task deletes the waiting records."""

        self._changed = asyncio.Event()

    def note_cycle_end(self) -> None:
        """Wake the task that deletes waiting records: a cycle has ended, so maybe no gang is being bound any more."""
        self._changed.set()

    def end_term(self) -> None:
        """Forget the waiting records at the end of a term. The next leader deletes them."""
        self._waiting.clear()
        self._removing = False

    async def remove(self, reservation: Reservation) -> None:
        """Delete the record of a reservation. After an error, retry in the background; never raise ApiError.

        The caller need not wait for that: the gang's next record replaces this one anyway.
        """
        try:
            await self._records.remove(reservation)
        except ApiError:
            self._spawn(self._remove_with_retries(reservation))

    async def remove_later(self, reservation: Reservation) -> None:
        """Have a record deleted when no gang is being bound, or after ten seconds.

        If more than a hundred records wait, delete the oldest one now.
        """
        if not self._removing:
            self._removing = True
            self._spawn(self._remove_waiting())
        self._waiting[reservation.group] = reservation, self._clock() + _MAX_WAIT_SECONDS
        if len(self._waiting) > _MAX_WAITING:
            await self.remove(self._waiting.pop(next(iter(self._waiting)))[0])

    async def remove_waiting_of(self, group: GroupKey) -> None:
        """Delete the record of a gang now if it waits to be deleted, because the gang begins a new cycle."""
        left = self._waiting.pop(group, None)
        if left is not None:
            await self.remove(left[0])

    async def remove_all(self) -> None:
        """Delete all waiting records, because the process ends.

        Stop after a second; the next leader deletes the rest.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await do_each([reservation for reservation, _ in self._waiting.values()], self._remove_once)

    async def _remove_once(self, reservation: Reservation) -> None:
        with suppress(ApiError):
            await self._records.remove(reservation)

    async def _remove_waiting(self) -> None:
        try:
            while self._waiting:
                group, (reservation, due) = next(iter(self._waiting.items()))
                if self._is_busy() and self._clock() < due:
                    self._changed.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), _CHECK_SECONDS)
                    continue
                try:
                    await self.remove(reservation)
                finally:
                    if group in self._waiting and self._waiting[group][0] is reservation:
                        del self._waiting[group]
        finally:
            self._removing = False

    async def _remove_with_retries(self, reservation: Reservation) -> None:
        async for _ in Attempts(_REMOVAL):
            try:
                await self._records.remove(reservation)
            except ApiError as error:
                # If it stays, the group's next write replaces it, or the garbage collector deletes it with its owner.
                log.warning(
                    "could not delete the Reservation of a gang; trying again",
                    extra=name_group(reservation.group) | {"err": str(error)},
                )
            else:
                return


def _log_rejection(record: Key, what: str, error: ApiError) -> None:
    """Log the message ``what``, because the API server has rejected a request for one record with ``error``.

    The caller then continues with the other records. Raise the error instead if it has no HTTP status, i.e. if the API
    server has not answered or this instance does not lead.
    """
    if not error.status:
        raise error
    log.warning(what, extra={"record": str(record), "err": str(error)})


def _check_format(record: Mapping[str, Any]) -> None:
    later = find_later_format(record)
    if later is not None:
        name = f"{record['metadata']['namespace']}/{record['metadata']['name']}"
        said = (
            f"the Reservation has format {later} of a later release of Serried: run that release, or delete the "
            "Reservation"
        )
        raise Invalid(f"read Reservation {name}", Failure(422, "RecordOfLaterRelease", said))


def _check_size(key: GroupKey, reservation: Reservation, body: Mapping[str, Any]) -> None:
    size = len(orjson.dumps(body))
    if size > MAX_RECORD_BYTES:
        said = (
            f"the Reservation of {len(reservation.slots)} members has {size:,} bytes, but the API server accepts "
            f"at most {MAX_RECORD_BYTES:,}: use fewer members, or shorter names of pods and nodes"
        )
        raise Invalid(f"write Reservation {key}", Failure(413, "RecordTooLarge", said))


def _check_stored(key: GroupKey, body: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Raise Invalid if the API server has stored a record without its members, so that a restart would not find them.

    The API server drops the field with the members if the CRD of Reservations is of an older release. ``body`` was
    sent, ``written`` is the answer.
    """
    if "packed" in body["spec"] and "packed" not in written["spec"]:
        said = "the CustomResourceDefinition of Reservations has no field packed: apply the CRDs of this release"
        raise Invalid(f"write Reservation {key}", Failure(422, "RecordNotKept", said))


def _read_version(record: Mapping[str, Any]) -> _ObjectVersion:
    meta = record["metadata"]
    return _ObjectVersion(str(meta.get("uid", "")), str(meta["resourceVersion"]))


def _term_of(record: Mapping[str, Any]) -> str:
    return str(record["spec"].get("term", ""))


def _is_committed(record: Mapping[str, Any]) -> bool:
    return bool(record["spec"].get("phase") == "Committed")
