"""An API server that only knows whose a token is, and who may ask for what."""

import asyncio
from typing import Any, cast

import orjson

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError


class Court:
    """``users`` by token; ``grants`` are (user or group, verb, path). ``error`` is raised instead of any answer."""

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self.groups: dict[str, list[str]] = {}
        """By token, where they are not those of the team."""
        self.grants: set[tuple[str, str, str]] = set()
        self.error: ApiError | None = None
        self.asked: list[str] = []
        """The kinds of reviews so far."""
        self.specs: list[dict[str, Any]] = []
        """What they asked."""
        self.open = asyncio.Event()
        """While it is not set, every review waits."""
        self.open.set()

    def client(self) -> ApiClient:
        """As the client of an API server."""
        return cast("ApiClient", self)

    async def ask(self, method: str, path: str, *, body: bytes, **how: Any) -> dict[str, Any]:
        """A review."""
        review = orjson.loads(body)
        assert (method, path.rpartition("/")[2]) == ("POST", f"{review['kind'].lower()}s")
        self.asked.append(review["kind"])
        self.specs.append(review["spec"])
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return {"status": self._judge(review["kind"], review["spec"])}

    def _judge(self, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        if kind == "SubjectAccessReview":
            asked = spec["nonResourceAttributes"]
            holders = [spec["user"], *spec["groups"]]
            return {"allowed": any((holder, asked["verb"], asked["path"]) in self.grants for holder in holders)}
        name = self.users.get(spec["token"])
        if name is None:
            return {"user": {}, "error": "invalid bearer token"}
        groups = self.groups.get(spec["token"], ["team"])
        return {
            "authenticated": True,
            "user": {"username": name, "uid": "1", "groups": groups, "extra": {"a": ["b"]}},
        }
