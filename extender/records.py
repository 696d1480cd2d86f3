"""The Reservation object: the durable side of the ledger, one object a gang, written only by the active extender."""

import asyncio
from collections import defaultdict
from typing import Any

from serried.decode.reservations import decode_reservation, encode_reservation
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
        self._latest: dict[Key, Reservation] = {}
        self._locks: dict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write(self, group: PodGroup, reservation: Reservation) -> None:
        """Create or replace the record. Raises ApiError if the API server did not take it, or did not say."""
        async with self._locks[reservation.group]:
            self._latest[reservation.group] = reservation
            body = self._body(group, reservation)
            version = self._versions.get(reservation.group)
            if version is None:
                written = await self._client.create(RESERVATIONS, group.key.namespace, body)
            else:
                body["metadata"]["resourceVersion"] = version
                written = await self._client.replace(RESERVATIONS, body)
            self._versions[reservation.group] = str(written["metadata"]["resourceVersion"])

    async def read_committed(self, group: Key) -> frozenset[str]:
        """What the API server holds for a group: the committed UIDs, empty if none. Raises ApiError."""
        async with self._locks[group]:
            try:
                found = await self._client.get(RESERVATIONS, group.namespace, group.name)
            except NotFound:
                self._versions.pop(group, None)
                return frozenset()
            self._versions[group] = str(found["metadata"]["resourceVersion"])
            reservation = decode_reservation(found)
            return reservation.committed if reservation else frozenset()

    async def remove(self, reservation: Reservation) -> None:
        """Delete the record of this reservation; one that is gone already is fine. Raises ApiError.

        Nothing happens if the group's record says something newer by now: the next round's plan.
        """
        key = reservation.group
        async with self._locks[key]:
            if key in self._versions and self._latest.get(key, reservation) is reservation:
                await self._delete(key)

    async def _delete(self, key: Key) -> None:
        try:
            await self._client.delete(RESERVATIONS, key.namespace, key.name)
        except NotFound:
            pass
        self._versions.pop(key, None)
        self._latest.pop(key, None)

    async def load(self) -> list[Reservation]:
        """Every record there is, at the start of a term; a record that cannot be read is deleted. Raises ApiError."""
        found = []
        for item in await self._client.list_all(RESERVATIONS):
            meta = item["metadata"]
            key = Key(meta["namespace"], meta["name"])
            self._versions[key] = str(meta["resourceVersion"])
            reservation = decode_reservation(item)
            if reservation is None:
                await self._delete(key)
            else:
                found.append(reservation)
        return found

    def _body(self, group: PodGroup, reservation: Reservation) -> dict[str, Any]:
        owner = {"apiVersion": self._group_version, "kind": "PodGroup", "name": group.key.name, "uid": group.uid}
        return {
            "apiVersion": RESERVATIONS.api_version,
            "kind": "Reservation",
            "metadata": {
                "name": group.key.name,
                "namespace": group.key.namespace,
                "ownerReferences": [owner],
                "labels": {"app.kubernetes.io/managed-by": "serried"},
            },
            "spec": encode_reservation(reservation, self._term),
        }
