"""A fake API server that only answers TokenReviews and SubjectAccessReviews."""

import asyncio
from typing import Any, cast

import orjson

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError


class FakeReviews:
    """Answers reviews from ``users`` (by token) and ``grants`` (user or group, verb, path); raises ``error`` if set."""

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self.groups: dict[str, list[str]] = {}
        """Groups by token; a token without an entry has the group ``team``."""
        self.grants: set[tuple[str, str, str]] = set()
        self.error: ApiError | None = None
        self.asked: list[str] = []
        """The kinds of the reviews so far, in order."""
        self.specs: list[dict[str, Any]] = []
        """The specs of the reviews so far, in order."""
        self.open = asyncio.Event()
        """While it is not set, every review waits."""
        self.open.set()

    def client(self) -> ApiClient:
        """Return this object, typed as an API client."""
        return cast("ApiClient", self)

    async def ask(self, method: str, path: str, *, body: bytes, **how: Any) -> dict[str, Any]:
        """Answer one review, as `ApiClient.ask` would."""
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
