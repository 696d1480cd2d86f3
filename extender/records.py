"""The Reservation object: the durable side of the ledger, one object a gang, written only by the active extender."""

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from serried.decode.reservations import decode_reservation, encode_reservation, name_record
from serried.kube.client import ApiClient
from serried.kube.errors import NotFound
from serried.kube.wire import RESERVATIONS
from serried.model.group import Key, PodGroup
from serried.model.reservation import Reservation


class Records:
    """Writes and reads Reservation objects, each by compare-and-swap on the version it has seen last.

    Writes of one group are strictly one after the other: a round that ends while its record is being written must
    not have its delete overtake the write. ``term`` names this extender in every record.
    """

    def __init__(self, client: ApiClient, group_version: str, term: str) -> None:
        self._client = client
        self._group_version = group_version
        self._term = term
        self._versions: dict[Key, str] = {}
        self._unsure: set[Key] = set()
        self._latest: dict[Key, Reservation] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def write(self, group: PodGroup, reservation: Reservation) -> None:
        """Create or replace the record. Raises ApiError if the API server did not take it, or did not say."""
        key = reservation.group
        async with self._lock(key):
            self._latest[key] = reservation
            if key in self._unsure:
                await self._look(key)
            # Until the answer is here the write may have happened or not, and our version may be outdated.
            self._unsure.add(key)
            body = self._body(group, reservation)
            version = self._versions.get(key)
            if version is None:
                written = await self._client.create(RESERVATIONS, group.key.namespace, body)
            else:
                body["metadata"]["resourceVersion"] = version
                written = await self._client.replace(RESERVATIONS, body)
            self._note_version(key, written)

    async def is_committed(self, reservation: Reservation) -> bool:
        """Whether the API server holds this very commit: the same members on the same nodes. Raises ApiError."""
        async with self._lock(reservation.group):
            found = await self._look(reservation.group)
        if found is None or found.committed != reservation.committed:
            return False
        return all(
            uid in reservation.slots and slot.node == reservation.slots[uid].node for uid, slot in found.slots.items()
        )

    async def _look(self, key: Key) -> Reservation | None:
        try:
            found = await self._client.get(RESERVATIONS, key.namespace, name_record(key))
        except NotFound:
            self._versions.pop(key, None)
            self._unsure.discard(key)
            return None
        self._note_version(key, found)
        return decode_reservation(found)

    def _note_version(self, key: Key, written: Mapping[str, Any]) -> None:
        self._versions[key] = str(written["metadata"]["resourceVersion"])
        self._unsure.discard(key)

    def _lock(self, key: Key) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def remove(self, reservation: Reservation) -> None:
        """Delete the record of this reservation; one that is gone already is fine. Raises ApiError.

        Nothing happens if the group's record says something newer by now: the next round's plan.
        """
        key = reservation.group
        async with self._lock(key):
            written = key in self._versions or key in self._unsure
            if written and self._latest.get(key, reservation) is reservation:
                await self._delete(key)

    async def _delete(self, key: Key) -> None:
        try:
            await self._client.delete(RESERVATIONS, key.namespace, name_record(key))
        except NotFound:
            pass
        self._versions.pop(key, None)
        self._unsure.discard(key)
        self._latest.pop(key, None)

    async def load(self) -> list[Reservation]:
        """Every record there is, at the start of a term; a record that cannot be read is deleted. Raises ApiError."""
        found = []
        self._versions.clear()  # of an earlier term of ours
        self._latest.clear()
        for item in await self._client.list_all(RESERVATIONS):
            meta = item["metadata"]
            reservation = decode_reservation(item)
            if reservation is None or name_record(reservation.group) != meta["name"]:
                await self._delete(Key(meta["namespace"], meta["name"]))
            else:
                self._versions[reservation.group] = str(meta["resourceVersion"])
                found.append(reservation)
        return found

    def _body(self, group: PodGroup, reservation: Reservation) -> dict[str, Any]:
        holder = group.holder(self._group_version)
        owner = {"apiVersion": holder.api_version, "kind": holder.kind, "name": holder.name, "uid": group.uid}
        return {
            "apiVersion": RESERVATIONS.api_version,
            "kind": "Reservation",
            "metadata": {
                "name": name_record(group.key),
                "namespace": group.key.namespace,
                "ownerReferences": [owner],
                "labels": {"app.kubernetes.io/managed-by": "serried"},
            },
            "spec": encode_reservation(reservation, self._term),
        }
