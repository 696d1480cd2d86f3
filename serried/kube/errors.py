"""Exceptions for failed calls of the API server: one class for each kind of failure that callers handle differently.

`api_error` makes the exception from a Status, `misread` from an answer that is not the API server's.
"""

from dataclasses import replace

from serried.kube.wire import Failure


class ApiError(Exception):
    """A call of the API server failed: it was rejected, or got no answer. The base class of all others here."""

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
        """The server's Retry-After in seconds, capped (`wire.cap_retry_after`); None if it named none."""


class NotFound(ApiError):
    """404 from the API server itself: no such object, or no such resource."""


class Conflict(ApiError):
    """409 for another reason than AlreadyExists: outdated resourceVersion, other UID, pod already bound."""


class AlreadyExists(ApiError):
    """409 AlreadyExists: an object with the name of the one to be created exists already."""


class Invalid(ApiError):
    """400 or 422: the request itself is wrong."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted."""


class Forbidden(ApiError):
    """403: RBAC or an admission plugin rejects the request."""


class Fenced(ApiError):
    """A write that was not sent, or not repeated, because this process does not hold the Lease any more."""


class TooMany(ApiError):
    """429: the API server is overloaded and asks the client to retry later."""


class BudgetRefusal(ApiError):
    """429: a PodDisruptionBudget does not allow an eviction now.

    The cause in the Status distinguishes it from the 429 of an overloaded API server
    (pkg/registry/core/pod/storage/eviction.go: createTooManyRequestsError, checkAndDecrement).
    """


class Unavailable(ApiError):
    """5xx, a timeout, no connection, or an answer that is not the API server's (with any ``status``, even 404)."""

    def __init__(self, call: str, failure: Failure, *, unsent: bool = False) -> None:
        super().__init__(call, failure)
        self.unsent = unsent
        """True if the request was certainly not sent. If False, a write may have happened."""


def is_unreadable(error: ApiError) -> bool:
    """Return whether the API server failed because stored objects have an API version that it does not know any more.

    That happens to lists after an upgrade that removes an alpha version (upstream's runtime.IsNotRegisteredError).
    """
    return "is registered for version" in error.message


def misread(call: str, status: int, problem: str) -> Unavailable:
    """Return the exception for an answer that does not come from the API server, such as the error page of a proxy.

    ``call`` is the method and path of the request, ``status`` the HTTP status of the answer. ``problem`` is a phrase
    that says what is wrong with it.
    """
    return Unavailable(call, Failure(status, "NoAnswer", f"not an answer of an API server: {problem}"))


_NO_SUCH_PATH = "404 page not found"
"""The text that an API server sends, without a Status, for a path that it does not serve (Go's http.NotFound)."""

_BUDGET_CAUSE = "DisruptionBudget"
"""The cause in the Status if a PodDisruptionBudget forbids an eviction (upstream's policyv1.DisruptionBudgetCause)."""

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
    """Return the exception that fits a failed call.

    ``call`` is its method and path, for the message. ``failure`` has the HTTP status, reason, message and causes from
    the Status in the answer.
    """
    if failure.code == 409 and failure.reason == "AlreadyExists":
        return AlreadyExists(call, failure)
    if failure.code == 429 and _BUDGET_CAUSE in failure.causes:
        return BudgetRefusal(call, failure)
    if failure.code == 404 and failure.reason != "NotFound" and failure.message != _NO_SUCH_PATH:
        # This 404 comes from a proxy on the way, and says nothing about the objects of the API server.
        return Unavailable(call, replace(failure, reason=failure.reason or "NoAnswer"))
    if failure.code >= 500:
        return Unavailable(call, failure)
    return _BY_STATUS.get(failure.code, ApiError)(call, failure)
