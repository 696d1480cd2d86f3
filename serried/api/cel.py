"""Selectors of devices: CEL expressions, as kube-scheduler evaluates them (dynamic-resource-allocation 0.37, cel).

The evaluator is Google's own (cel-cpp). What Kubernetes adds to the language and selectors use is declared here:
``device``, quantities and semantic versions. The rest of what it adds (lists, sets, IP addresses, URLs,
comprehensions of two variables) is not known here: such a selector is beyond us, and only kube-scheduler can say which
devices it takes.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from serried.api.resources import parse_exact

Value = str | int | bool | bytes | list[Any]
"""Of an attribute or a capacity; a version or a quantity is bytes that this module makes."""

Values = Mapping[str, Mapping[str, Value]]
"""By domain and identifier."""


class Broken(ValueError):
    """The selector is wrong, or fails for a device: kube-scheduler places no pod with it. The text says why."""


class Unsupported(ValueError):
    """The selector may be right, but what it says is not known here."""


class Selector:
    """A selector that can be evaluated."""

    def __init__(self, expression: str) -> None:
        """Broken if this is no selector, Unsupported if it is beyond us."""
        self.expression = expression
        environment, boolean, dynamic = _open_environment()
        try:
            self._program = environment.compile(expression)
        except RuntimeError as error:
            said = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ERROR: ")
            raise (Broken if "Syntax error" in said else Unsupported)(said) from error
        if self._program.return_type() not in (boolean, dynamic):
            raise Broken(f"must evaluate to bool, not {self._program.return_type().name()}")
        self._domains = None if _LOOKS_FOR_DOMAINS.search(expression) else _find_names(expression)
        self._named = None if _LOOKS_FOR_NAMES.search(expression) else frozenset(_WORD.findall(expression))
        self._reads_attributes = "attributes" in expression
        self._reads_capacity = "capacity" in expression
        self._chosen: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._known: dict[object, bool | ValueError] = {}

    def matches(self, driver: str, attributes: Values, capacity: Values, *, shareable: bool) -> bool:
        """Whether it takes a device; ``shareable`` is allowMultipleAllocations.

        Raises Broken if it fails for the device, Unsupported if it may.
        """
        seen: list[object] = [driver, shareable]
        if self._reads_attributes:
            self._add_seen(seen, attributes)
        seen.append(None)
        if self._reads_capacity:
            self._add_seen(seen, capacity)
        key = tuple(seen)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._evaluate(driver, attributes, capacity, shareable)
        found = self._known[key]
        if isinstance(found, ValueError):
            raise found
        return found

    def _add_seen(self, seen: list[object], values: Values) -> None:
        """Add what the selector can see of a device: few of its attributes, so many devices are one to it."""
        if self._domains is None:
            seen += values
        for domain, named in values.items():
            for name in named if self._named is None else self._choose(tuple(named)):
                value = named[name]
                seen += (domain, name, type(value), tuple(value) if isinstance(value, list) else value)

    def _choose(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these names that the selector may ask for; most devices have the same names."""
        chosen = self._chosen.get(names)
        if chosen is None:
            if len(self._chosen) >= _MAX_KNOWN:
                self._chosen.clear()
            chosen = self._chosen[names] = tuple([name for name in names if self._named is None or name in self._named])
        return chosen

    def _evaluate(self, driver: str, attributes: Values, capacity: Values, shareable: object) -> bool | ValueError:
        # As upstream's map: a domain without values is empty when it is asked for, and yet not among the domains.
        empty: Values = {name: {} for name in (*self._domains, driver)} if self._domains is not None else {}
        data = {
            "device.driver": driver,
            "device.attributes": {**empty, **attributes},
            "device.capacity": {**empty, **capacity},
            "device.allowMultipleAllocations": shareable,
        }
        try:
            found = self._program.eval(data=data)
        except RuntimeError as error:  # far too many steps, which upstream may not find too many
            return Unsupported(str(error))
        value = found.value()
        if isinstance(value, bool):
            return value
        said = str(value).partition(": ")[2] if found.type().name() == "ERROR" else ""
        if self._domains is None and said.startswith("Key not found"):
            return Unsupported(said)
        return Broken(said or f"is a {found.type().name().lower()}, not a bool")


_MAX_KNOWN = 65536
"""For how many kinds of devices a selector remembers whether it takes them."""

_LOOKS_FOR_DOMAINS = re.compile(r"\bdevice\s*\.\s*(?:attributes|capacity)\b(?!\s*(?:\[|\.\s*\w+\s*(?:[^\w\s(]|$)))")
"""Where the domains themselves are looked through, and not only what is in one of them."""

_LOOKS_FOR_NAMES = re.compile(r"\.\s*(?:exists|exists_one|all|filter|map)\s*\(|\bsize\s*\(|[!=]=\s*\{|\+")
"""Where names of attributes may matter that the expression does not spell out."""

_WORD = re.compile(r"\w+")
_NAMES = re.compile(r"\"([^\"\\]*)\"|'([^'\\]*)'|\bdevice\s*\.\s*(?:attributes|capacity)\s*\.\s*(\w+)")


def _find_names(expression: str) -> tuple[str, ...]:
    return tuple({name for found in _NAMES.findall(expression) for name in found if name})


@lru_cache(maxsize=1024)
def _compile(expression: str) -> Selector | ValueError:
    try:
        return Selector(expression)
    except ValueError as error:
        return error


def compile_selector(expression: str) -> Selector:
    """The selector, compiled once. Broken if this is none, Unsupported if it is beyond us."""
    found = _compile(expression)
    if isinstance(found, ValueError):
        raise found
    return found


_QUANTITY, _VERSION = b"quantity ", b"version "


def quantity(text: str) -> bytes:
    """A quantity, as a value. ValueError if the text is none."""
    return _QUANTITY + str(parse_exact(text)).encode()


_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_PARTS = re.compile(r"v?0*([0-9]+)(?:\.0*([0-9]+)(?:\.0*([0-9]+.*))?)?(.*)", re.DOTALL)


def version(text: str, normalize: object = False) -> bytes:  # noqa: FBT002  # as CEL calls it
    """A semantic version, as a value: what comes behind ``+`` does not count. ValueError if the text is none.

    ``normalize`` is upstream's: "v1.2" is 1.2.0.
    """
    if normalize and (parts := _PARTS.fullmatch(text)):
        text = f"{parts[1]}.{parts[2] or 0}.{parts[3] or 0}{parts[4]}"
    found = _SEMVER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a semantic version")
    return _VERSION + text.partition("+")[0].encode()


def _order(value: bytes) -> tuple[Any, ...]:
    """What values of one kind are compared by; ValueError for what is not one."""
    kind, _, text = value.decode().partition(" ")
    if kind == "quantity":
        return kind, int(text)
    if kind != "version":
        raise ValueError("no such overload")
    numbers, _, pre = text.partition("-")
    major, minor, patch = map(int, numbers.split("."))
    # A version without a pre-release is above all with one, and numbers in it are below words.
    marks = [(0, int(mark), "") if mark.isdigit() else (1, 0, mark) for mark in pre.split(".")] if pre else []
    return kind, major, minor, patch, not pre, marks


def _compare(left: bytes, right: bytes) -> int:
    one, other = _order(left), _order(right)
    if one[0] != other[0]:
        raise ValueError("no such overload")
    return (one > other) - (one < other)


def _is(parse: Callable[..., bytes]) -> Callable[..., bool]:
    def check(*arguments: Any) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return check


def _part(index: int) -> Callable[[bytes], int]:
    def read(value: bytes) -> int:
        order = _order(value)
        if order[0] != "version":
            raise ValueError("no such overload")
        return int(order[index])

    return read


@lru_cache(maxsize=1)
def _open_environment() -> tuple[Any, Any, Any]:
    """The environment of all selectors, and the types of results that are allowed.

    Only a cluster with claims of devices loads the library. Where there is none for the platform, all is Unsupported.
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
        declare("isQuantity", boolean, _is(quantity), (text,)),
        declare("semver", data, version, (text,), (text, boolean)),
        declare("isSemver", boolean, _is(version), (text,), (text, boolean)),
        declare("isGreaterThan", boolean, lambda left, right: _compare(left, right) > 0, (data, data)),
        declare("isLessThan", boolean, lambda left, right: _compare(left, right) < 0, (data, data)),
        declare("compareTo", whole, _compare, (data, data)),
        *(declare(name, whole, _part(place), (data,)) for place, name in enumerate(("major", "minor", "patch"), 1)),
    ]
    values = {
        "device.driver": text,
        "device.attributes": kind.Map(text, kind.Map(text, kind.DYN)),
        "device.capacity": kind.Map(text, kind.Map(text, data)),
        "device.allowMultipleAllocations": boolean,
    }
    extensions = [strings.ExtStrings(), bindings.ExtBindings(), optional.ExtOptional()]
    return cel.NewEnv(variables=values, extensions=extensions, functions=functions), boolean, kind.DYN
