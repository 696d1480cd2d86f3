"""Measure the bytes in etcd of the objects of gangs: Workloads, PodGroups and events of 10,000 gang Jobs.

The Jobs are suspended, and Serried's controller creates the other objects. Counted are the bytes of keys and values,
which are read from etcd itself: JSON for Serried's own CRDs, protobuf for the native API.

    python -m bench.stored            at both API levels; one JSON object on stdout and in `bench/results/`
"""

import argparse
import asyncio
import base64
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import httpx

from bench.cluster import Cluster, Spec
from bench.cluster.spec import Api
from bench.contenders import QPS
from bench.jobs.objects import Batch
from bench.jobs.run import open_bench
from bench.machine import describe_machine

RESULTS = Path(__file__).with_name("results")
RESOURCES = ("jobs", "workloads", "podgroups", "events")
_PAGE = 500
_REGISTRY = b"/registry/"


@dataclass(frozen=True, slots=True)
class Stored:
    """The objects of one resource in etcd."""

    objects: int = 0
    bytes: int = 0

    def add(self, size: int) -> "Stored":
        """Return the sum with one more object of ``size`` bytes."""
        return Stored(self.objects + 1, self.bytes + size)


def name_resource(key: str) -> str:
    """Return the resource of an API server's key: `/registry/GROUP/RESOURCE/...`, or without the group."""
    parts = key.split("/")[2:]
    return parts[1] if "." in parts[0] and len(parts) > 1 else parts[0]


def count(pairs: Iterator[tuple[bytes, bytes]]) -> dict[str, Stored]:
    """Count keys and values by resource."""
    found: dict[str, Stored] = {}
    for key, value in pairs:
        resource = name_resource(key.decode())
        found[resource] = found.get(resource, Stored()).add(len(key) + len(value))
    return found


def read_pairs(etcd: httpx.Client) -> Iterator[tuple[bytes, bytes]]:
    """Read every key of the API server with its value, in pages."""
    begin, end = _REGISTRY, _REGISTRY[:-1] + bytes([_REGISTRY[-1] + 1])
    while True:
        query = {"key": _encode(begin), "range_end": _encode(end), "limit": _PAGE}
        answer = etcd.post("/v3/kv/range", json=query).raise_for_status().json()
        for pair in answer.get("kvs", ()):
            begin = base64.b64decode(pair["key"])
            yield begin, base64.b64decode(pair.get("value", ""))
        if not answer.get("more"):
            return
        begin += b"\0"


def _encode(key: bytes) -> str:
    return base64.b64encode(key).decode()


def describe(found: Mapping[str, Stored], api: str, gangs: int) -> list[dict[str, Any]]:
    """Return a row for each resource, with the bytes per gang."""
    rows = []
    for resource in RESOURCES:
        stored = found.get(resource, Stored())
        each = round(stored.bytes / gangs)
        row = {"api": api, "resource": resource, "objects": stored.objects, "bytes": stored.bytes, "bytes_a_gang": each}
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure at each API level, print the result and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=10_000)
    parser.add_argument("--api", nargs="+", choices=get_args(Api), default=list(get_args(Api)))
    parser.add_argument("--patience", type=float, default=1200.0, help="seconds until the last object has to be there")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the result's file name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    rows = [row for api in options.api for row in measure(api, options.gangs, options.patience)]
    about = {"date": options.date, "machine": describe_machine(), "kubernetes": Spec("any").kubernetes}
    result = json.dumps(about | {"gangs": options.gangs, "rows": rows}, indent=2)
    (options.results / f"stored-{options.date}.json").write_text(result + "\n")
    print(result)
    return 0


def measure(api: Api, gangs: int, patience: float) -> list[dict[str, Any]]:
    """Create the gangs on a new cluster, and return the rows of its API level."""
    cluster = Cluster.up(Spec(f"bench-stored-{os.getpid()}", 2, racks=2, blocks=1, api=api, qps=QPS, job_syncs=20))
    try:
        asyncio.run(_create(cluster, gangs, patience))
        with httpx.Client(base_url=cluster.etcd_url, timeout=60.0) as etcd:
            return describe(count(read_pairs(etcd)), api, gangs)
    finally:
        cluster.down()


async def _create(cluster: Cluster, gangs: int, patience: float) -> None:
    async with open_bench(cluster, patience) as bench:
        await bench.measure(Batch("gang", gangs))


if __name__ == "__main__":
    sys.exit(main())
