"""What the API server publishes of the schemas of its native group, and what Serried makes of them."""

import logging
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from serried.decode.fields import Raw
from serried.decode.schemas import describe_difference, find_shape, read_schemas, refuse_composites
from serried.decode.versions import find_schema
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound, misread
from serried.kube.wire import Failure
from serried.model.level import NATIVE_GROUP, NATIVE_LEVELS

log = logging.getLogger(__name__)

_INDEX = "/openapi/v3"

_KNOWN = frozenset(level.version for level in NATIVE_LEVELS)
"""The versions that are taken by their names while their schemas cannot be read."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of a version."""

    shape: str
    """The known version that it is like, maybe itself; "" if there is none."""

    refusal: str = ""
    """Why its Workloads and PodGroups are not read, a sentence; "" if they are."""

    composite_refusal: str = ""
    """The same of its CompositePodGroups, if it has some."""


class Schemas:
    """Judges versions by their schemas. A document is some 300 KB, and is read again only when its hash changes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._judgements: dict[str, Judgement] = {}
        """By the place of the schema, which names its hash."""
        self._latest: dict[str, Judgement] = {}
        """The last one of each version."""

    async def judge(self, version: str) -> Judgement:
        """What is thought of a version of the native group.

        While its schema cannot be read, what was thought of it last counts; before that, its name. Raises ApiError if
        the API server does not answer, and there is neither.
        """
        try:
            self._latest[version] = await self._judge(version)
            return self._latest[version]
        except ApiError as error:
            if version not in self._latest:
                return self._judge_name(version, error)
            log.info("cannot read a schema again", extra={"version": version, "err": str(error)})
            return self._latest[version]

    def _judge_name(self, version: str, error: ApiError) -> Judgement:
        if version in _KNOWN:
            log.info("cannot read a schema", extra={"version": version, "err": str(error)})
            return Judgement(version)
        if not isinstance(error, Forbidden | NotFound):
            raise error
        refusal = f"{NATIVE_GROUP}/{version} is not known, and its schema cannot be read: {error}"
        return Judgement("", refusal, refusal)

    async def _judge(self, version: str) -> Judgement:
        index = await self._client.read(_INDEX)
        try:
            place = find_schema(index, f"{NATIVE_GROUP}/{version}")
        except ValueError as error:
            raise misread(f"GET {_INDEX}", 200, str(error)) from error
        if place is None:
            raise NotFound(f"GET {_INDEX}", Failure(404, "NotFound", f"it names no schema of {version}"))
        if place not in self._judgements:
            self._judgements[place] = await self._read(place, version)
        return self._judgements[place]

    async def _read(self, place: str, version: str) -> Judgement:
        parts = urlsplit(place)
        document = await self._client.read(parts.path, dict(parse_qsl(parts.query)))
        try:
            return _judge_schemas(read_schemas(document), version)
        except ValueError as error:
            raise misread(f"GET {parts.path}", 200, str(error)) from error


def _judge_schemas(schemas: Raw, version: str) -> Judgement:
    shape = find_shape(schemas, version)
    refusal = "" if shape else describe_difference(schemas, version)
    return Judgement(shape or "", refusal, refuse_composites(schemas, version))
