"""How the API server refuses: one exception class per refusal that callers tell apart."""

from dataclasses import replace

from serried.kube.wire import Failure


class ApiError(Exception):
    """The API server did not do what was asked."""

    def __init__(self, call: str, failure: Failure) -> None:
        said = failure.message or failure.reason or "no message"
        super().__init__(f"{call}: {failure.code or 'no answer'} {failure.reason}: {said}".replace(" :", ":"))
        self.status = failure.code
        """The HTTP status; 0 if no answer came."""
        self.reason = failure.reason
        """The reason in the Status object."""
        self.message = failure.message
        """The message in the Status object, or what was wrong with the answer."""
        self.retry_after = failure.retry_after
        """How many seconds to wait as the server asked, within limits (`wire.limit_rest`); None if it did not."""


class NotFound(ApiError):
    """404 of an API server: no such object, or no such resource."""


class Conflict(ApiError):
    """409 for another reason than AlreadyExists: outdated resourceVersion, other UID, pod already bound."""


class AlreadyExists(ApiError):
    """409 AlreadyExists: a create found the name taken."""


class Invalid(ApiError):
    """400 or 422: the request itself is wrong."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted."""


class Forbidden(ApiError):
    """403: RBAC or admission says no."""


class Fenced(ApiError):
    """A change that was not sent, or not again, because whoever asks for it may not write any more."""


class TooMany(ApiError):
    """429: the API server has too much to do, and asks to come later."""


class BudgetRefusal(ApiError):
    """429: a disruption budget does not allow an eviction now.

    The cause tells it from an API server that has too much to do, which looks at no pod
    (pkg/registry/core/pod/storage/eviction.go: createTooManyRequestsError, checkAndDecrement).
    """


class Unavailable(ApiError):
    """5xx, a timeout, no connection, or an answer that is no API server's (then ``status`` may be any, also 404)."""

    def __init__(self, call: str, failure: Failure, *, unsent: bool = False) -> None:
        super().__init__(call, failure)
        self.unsent = unsent
        """Whether the request was certainly not sent. Otherwise a write may have happened."""


def is_unreadable(error: ApiError) -> bool:
    """Whether the API server has found stored objects of a version that it does not know, so that it can list none.

    An alpha version leaves them behind when the next minor does not have it (upstream's runtime.IsNotRegisteredError).
    """
    return "is registered for version" in error.message


def misread(call: str, status: int, said: str) -> Unavailable:
    """The exception for an answer that is not the API server's, such as a proxy's page; ``said`` is what is wrong."""
    return Unavailable(call, Failure(status, "NoAnswer", f"not an answer of an API server: {said}"))


_NO_SUCH_PATH = "404 page not found"
"""What an API server says, without a Status, of a path under which it serves nothing (Go's http.NotFound)."""

_BUDGET_CAUSE = "DisruptionBudget"
"""Upstream's policyv1.DisruptionBudgetCause."""

_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooMany,
}


def api_error(call: str, failure: Failure) -> ApiError:
    """The exception for a failure; ``call`` is method and path."""
    if failure.code == 409 and failure.reason == "AlreadyExists":
        return AlreadyExists(call, failure)
    if failure.code == 429 and _BUDGET_CAUSE in failure.causes:
        return BudgetRefusal(call, failure)
    if failure.code == 404 and failure.reason != "NotFound" and failure.message != _NO_SUCH_PATH:
        # A proxy on the way has no such page: that says nothing of what the API server has.
        return Unavailable(call, replace(failure, reason=failure.reason or "NoAnswer"))
    if failure.code >= 500:
        return Unavailable(call, failure)
    return _BY_STATUS.get(failure.code, ApiError)(call, failure)
