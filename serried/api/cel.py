"""CEL selectors of devices (`compile_selector`), evaluated as kube-scheduler does (dynamic-resource-allocation 0.37).

The evaluator is Google's cel-cpp. This module adds the extensions of Kubernetes that selectors use: ``device``,
quantities and semantic versions. Other extensions (lists, sets, IP addresses, URLs, two-variable comprehensions) are
not supported: such a selector raises `Unsupported`, and only kube-scheduler can decide which devices it matches.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from serried.api.resources import parse_exact

Value = str | int | bool | bytes | list[Any]
"""The value of a device's attribute or capacity. A version or quantity is bytes, made by `version` or `quantity`."""

Values = Mapping[str, Mapping[str, Value]]
"""Attributes or capacities of a device, by domain and identifier: ``example.com/numa`` is in ``example.com``."""


class Broken(ValueError):
    """Raised for a selector that is invalid, or that fails for a device. The message says why.

    kube-scheduler schedules no pod whose claim has such a selector.
    """


class Unsupported(ValueError):
    """Raised for a selector that Serried cannot evaluate. It may be valid for kube-scheduler."""


class Selector:
    """A compiled CEL selector of devices, with a cache of its results. `compile_selector` creates it."""

    def __init__(self, expression: str) -> None:
        """Compile an expression. Raises Broken if it is invalid, Unsupported if Serried cannot evaluate it."""
        self.expression = expression
        environment, boolean, dynamic = _open_environment()
        try:
            self._program = environment.compile(expression)
        except RuntimeError as error:
            said = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ERROR: ")
            raise (Broken if "Syntax error" in said else Unsupported)(said) from error
        if self._program.return_type() not in (boolean, dynamic):
            raise Broken(f"must evaluate to bool, not {self._program.return_type().name()}")
        self._domains = None if _ITERATES_DOMAINS.search(expression) else _find_literals(expression)
        self._named = None if _ITERATES_NAMES.search(expression) else frozenset(_WORD.findall(expression))
        self._reads_attributes = "attributes" in expression
        self._reads_capacity = "capacity" in expression
        self._relevant_names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._results: dict[object, bool | ValueError] = {}

    def matches(self, driver: str, attributes: Values, capacity: Values, *, shareable: bool) -> bool:
        """Return whether a device with these properties matches. ``shareable`` is its allowMultipleAllocations.

        Raises Broken if the evaluation fails for the device. Raises Unsupported if it fails here, but may succeed in
        kube-scheduler.
        """
        seen: list[object] = [driver, shareable]
        if self._reads_attributes:
            self._add_visible(seen, attributes)
        seen.append(None)
        if self._reads_capacity:
            self._add_visible(seen, capacity)
        key = tuple(seen)
        if key not in self._results:
            if len(self._results) >= _MAX_CACHED:
                self._results.clear()
            self._results[key] = self._evaluate(driver, attributes, capacity, shareable)
        found = self._results[key]
        if isinstance(found, ValueError):
            raise found
        return found

    def _add_visible(self, seen: list[object], values: Values) -> None:
        """Append those of the ``values`` of a device that the selector may read to ``seen``.

        ``seen`` becomes the key in the cache of results. A selector reads few attributes, so many devices have the same
        key.
        """
        if self._domains is None:
            seen += values
        for domain, named in values.items():
            for name in named if self._named is None else self._select_names(tuple(named)):
                value = named[name]
                seen += (domain, name, type(value), tuple(value) if isinstance(value, list) else value)

    def _select_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the ``names`` of attributes or capacities that the selector may read, from a cache."""
        chosen = self._relevant_names.get(names)
        if chosen is None:
            if len(self._relevant_names) >= _MAX_CACHED:
                self._relevant_names.clear()
            chosen = self._relevant_names[names] = tuple(
                [name for name in names if self._named is None or name in self._named]
            )
        return chosen

    def _evaluate(self, driver: str, attributes: Values, capacity: Values, shareable: object) -> bool | ValueError:
        # As in upstream's map, a missing domain reads as empty, although it is not among the keys.
        empty: Values = {name: {} for name in (*self._domains, driver)} if self._domains is not None else {}
        data = {
            "device.driver": driver,
            "device.attributes": {**empty, **attributes},
            "device.capacity": {**empty, **capacity},
            "device.allowMultipleAllocations": shareable,
        }
        try:
            found = self._program.eval(data=data)
        except RuntimeError as error:  # the limit on steps is exceeded; upstream's limit may be higher
            return Unsupported(str(error))
        value = found.value()
        if isinstance(value, bool):
            return value
        said = str(value).partition(": ")[2] if found.type().name() == "ERROR" else ""
        if self._domains is None and said.startswith("Key not found"):
            return Unsupported(said)
        return Broken(said or f"is a {found.type().name().lower()}, not a bool")


_MAX_CACHED = 65536
"""The maximum number of entries in each cache of a selector. A full cache is cleared."""

_ITERATES_DOMAINS = re.compile(r"\bdevice\s*\.\s*(?:attributes|capacity)\b(?!\s*(?:\[|\.\s*\w+\s*(?:[^\w\s(]|$)))")
"""Matches expressions that read ``device.attributes`` or ``device.capacity`` as a whole, not only one domain in it."""

_ITERATES_NAMES = re.compile(r"\.\s*(?:exists|exists_one|all|filter|map)\s*\(|\bsize\s*\(|[!=]=\s*\{|\+")
"""Matches expressions that may read attributes without naming them, for instance by ``exists``."""

_WORD = re.compile(r"\w+")
_NAMES = re.compile(r"\"([^\"\\]*)\"|'([^'\\]*)'|\bdevice\s*\.\s*(?:attributes|capacity)\s*\.\s*(\w+)")


def _find_literals(expression: str) -> tuple[str, ...]:
    return tuple({name for found in _NAMES.findall(expression) for name in found if name})


@lru_cache(maxsize=1024)
def _compile(expression: str) -> Selector | ValueError:
    try:
        return Selector(expression)
    except ValueError as error:
        return error


def compile_selector(expression: str) -> Selector:
    """Return the selector for an expression, from a cache. Raises Broken or Unsupported as `Selector` does."""
    found = _compile(expression)
    if isinstance(found, ValueError):
        raise found
    return found


_QUANTITY, _VERSION = b"quantity ", b"version "


def quantity(text: str) -> bytes:
    """Return a Kubernetes quantity such as ``10Gi`` as a CEL value. Raises ValueError if ``text`` is no quantity."""
    return _QUANTITY + str(parse_exact(text)).encode()


_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_PARTS = re.compile(r"v?0*([0-9]+)(?:\.0*([0-9]+)(?:\.0*([0-9]+.*))?)?(.*)", re.DOTALL)


def version(text: str, normalize: object = False) -> bytes:  # noqa: FBT002  # as CEL calls it
    """Return a semantic version as a CEL value, without the build metadata behind ``+``.

    If ``normalize`` is true, incomplete versions are completed as upstream does it: "v1.2" is 1.2.0. Raises ValueError
    if ``text`` is no semantic version.
    """
    if normalize and (parts := _PARTS.fullmatch(text)):
        text = f"{parts[1]}.{parts[2] or 0}.{parts[3] or 0}{parts[4]}"
    found = _SEMVER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a semantic version")
    return _VERSION + text.partition("+")[0].encode()


def _comparison_key(value: bytes) -> tuple[Any, ...]:
    """Return a tuple by which two quantities, or two versions, can be compared.

    Its first element is "quantity" or "version", so that the two are not compared with each other. ``value`` is a
    result of `quantity` or `version`; raises ValueError for other bytes.
    """
    kind, _, text = value.decode().partition(" ")
    if kind == "quantity":
        return kind, int(text)
    if kind != "version":
        raise ValueError("no such overload")
    numbers, _, pre = text.partition("-")
    major, minor, patch = map(int, numbers.split("."))
    # A version without pre-release is higher than one with it. In a pre-release, numbers are lower than words.
    marks = [(0, int(mark), "") if mark.isdigit() else (1, 0, mark) for mark in pre.split(".")] if pre else []
    return kind, major, minor, patch, not pre, marks


def _compare(left: bytes, right: bytes) -> int:
    one, other = _comparison_key(left), _comparison_key(right)
    if one[0] != other[0]:
        raise ValueError("no such overload")
    return (one > other) - (one < other)


def _make_check(parse: Callable[..., bytes]) -> Callable[..., bool]:
    def check(*arguments: Any) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return check


def _make_getter(index: int) -> Callable[[bytes], int]:
    def read(value: bytes) -> int:
        order = _comparison_key(value)
        if order[0] != "version":
            raise ValueError("no such overload")
        return int(order[index])

    return read


@lru_cache(maxsize=1)
def _open_environment() -> tuple[Any, Any, Any]:
    """Return the CEL environment for all selectors, and the two types that their results may have (bool, dynamic).

    The CEL library is imported here, so that it is only loaded in clusters with device claims. Raises Unsupported if
    it is not installed, because there is none for the platform.
    """
    try:
        cel = import_module("cel_expr_python.cel")
        strings = import_module("cel_expr_python.ext.ext_strings")
        bindings = import_module("cel_expr_python.ext.ext_bindings")
        optional = import_module("cel_expr_python.ext.ext_optional")
    except ImportError as error:
        raise Unsupported("there is no CEL library here") from error
    kind = cel.Type
    text, boolean, whole, data = kind.STRING, kind.BOOL, kind.INT, kind.BYTES

    def declare(name: str, result: Any, impl: Callable[..., Any], *signatures: tuple[Any, ...]) -> Any:
        member = signatures[0][0] is data
        overloads = [
            cel.Overload(f"{name}_{count}", result, list(types), is_member=member, impl=impl)
            for count, types in enumerate(signatures)
        ]
        return cel.FunctionDecl(name, overloads)

    functions = [
        declare("quantity", data, quantity, (text,)),
        declare("isQuantity", boolean, _make_check(quantity), (text,)),
        declare("semver", data, version, (text,), (text, boolean)),
        declare("isSemver", boolean, _make_check(version), (text,), (text, boolean)),
        declare("isGreaterThan", boolean, lambda left, right: _compare(left, right) > 0, (data, data)),
        declare("isLessThan", boolean, lambda left, right: _compare(left, right) < 0, (data, data)),
        declare("compareTo", whole, _compare, (data, data)),
        *(
            declare(name, whole, _make_getter(place), (data,))
            for place, name in enumerate(("major", "minor", "patch"), 1)
        ),
    ]
    values = {
        "device.driver": text,
        "device.attributes": kind.Map(text, kind.Map(text, kind.DYN)),
        "device.capacity": kind.Map(text, kind.Map(text, data)),
        "device.allowMultipleAllocations": boolean,
    }
    extensions = [strings.ExtStrings(), bindings.ExtBindings(), optional.ExtOptional()]
    return cel.NewEnv(variables=values, extensions=extensions, functions=functions), boolean, kind.DYN
