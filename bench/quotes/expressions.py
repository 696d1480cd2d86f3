"""The small language in which a page names the place of a number in a result. Pure.

The syntax is Python's, with these forms only:

| form | meaning |
|---|---|
| `latency`, `rows` | a top-level key of the result, or a name defined before |
| `rows(names=1, pod="plain pod")` | the one entry of a list with these values; several, if there are several |
| `entry.p50_ms`, `entry["CPUs placed"]`, `splits[2]` | a value; of several entries, the value of each |
| `+ - * /`, brackets, `a, b` | arithmetic, and several values |
| `min max sum median len` | of one list, of an object's values, or of several values |
| `of("jobs-native")` | another result |
"""

import ast
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class QuoteError(Exception):
    """A source cannot be found or computed. The message says why."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names that an expression may use."""

    values: Mapping[str, Any]
    definitions: Sequence[tuple[str, str]] = ()
    """Names with an expression, which is computed at each use. An expression may use the names before it."""

    def look_up(self, name: str) -> Any:
        """Return the value of a name. Raise QuoteError if it is not defined."""
        for index in reversed(range(len(self.definitions))):
            if self.definitions[index][0] == name:
                return evaluate(self.definitions[index][1], Names(self.values, self.definitions[:index]))
        if name in self.values:
            return self.values[name]
        if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        raise QuoteError(f"the result has no {name!r}, but {', '.join(sorted(self.values))}")


def evaluate(source: str, names: Names) -> Any:
    """Return the value of an expression. Raise QuoteError if it cannot be read or computed."""
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except SyntaxError as error:
        raise QuoteError(f"cannot read the expression {source.strip()!r}: {error.msg}") from error
    try:
        return _evaluate(tree.body, names)
    except (TypeError, ValueError, ZeroDivisionError, statistics.StatisticsError) as error:
        raise QuoteError(f"cannot compute {source.strip()!r}: {error}") from error


def evaluate_numbers(source: str, names: Names) -> list[float]:
    """Return the one or more numbers of an expression. Raise QuoteError if its value is anything else."""
    value = evaluate(source, names)
    values = list(value) if isinstance(value, tuple) else [value]
    for each in values:
        if not isinstance(each, int | float) or isinstance(each, bool):
            raise QuoteError(f"{source.strip()!r} gives {_show(each)}, which is no number")
    return values


def _evaluate(node: ast.expr, names: Names) -> Any:
    value: Any
    match node:
        case ast.Constant():
            value = node.value
        case ast.Name():
            value = names.look_up(node.id)
        case ast.Attribute():
            value = _pick(_evaluate(node.value, names), node.attr)
        case ast.Subscript():
            value = _pick(_evaluate(node.value, names), _evaluate(node.slice, names))
        case ast.Tuple():
            value = tuple(_evaluate(part, names) for part in node.elts)
        case ast.BinOp() if type(node.op) in _OPERATIONS:
            value = _OPERATIONS[type(node.op)](_evaluate(node.left, names), _evaluate(node.right, names))
        case ast.Call():
            arguments = [_evaluate(part, names) for part in node.args]
            wanted = {word.arg: _evaluate(word.value, names) for word in node.keywords}
            value = _call(_evaluate(node.func, names), arguments, wanted)
        case _:
            raise QuoteError(f"{ast.unparse(node)!r} is none of the forms that a source may have")
    return value


def _pick(value: Any, key: Any) -> Any:
    if isinstance(value, list) and not isinstance(key, int):
        return [_pick(entry, key) for entry in value]
    try:
        return value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise QuoteError(f"there is no {key!r} in {_show(value)}") from error


def _call(function: Any, arguments: list[Any], wanted: Mapping[str | None, Any]) -> Any:
    if callable(function):
        return function(*arguments)
    if not isinstance(function, list) or arguments:
        raise QuoteError(f"{_show(function)} cannot be asked for entries: it takes a list, and key=value")
    found = [entry for entry in function if all(_pick(entry, key) == value for key, value in wanted.items())]
    if not found:
        raise QuoteError(f"no entry has {', '.join(f'{key}={value!r}' for key, value in wanted.items())}")
    return found[0] if len(found) == 1 else found


def _of_many(function: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        only = values[0] if len(values) == 1 else values
        return function(list(only.values() if isinstance(only, dict) else only))

    return apply


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": _of_many(min),
    "max": _of_many(max),
    "sum": _of_many(sum),
    "len": _of_many(len),
    "median": _of_many(statistics.median),
}


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
