"""Render results of `bench.throughput` for README and docs: a table of ratios, a table of targets, and a plot. Pure.

Each result is of one cluster: a number of nodes, and the share of them that was in use before. Columns, rows and bars
without a result are left out. `bench.publish` calls these functions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from bench.comparison import WAITING, Place, compute_targets

RESULTS = (
    *("throughput", "throughput-filled", "throughput-5000", "throughput-filled-5000"),
    *("throughput-latency", "throughput-latency-5000"),
)
"""The names of the results, in the order of the columns. The last two are of the same clusters as earlier ones."""

_ROWS = {
    "gangs in racks to native gangs in racks": "gangs of 20 in racks, to native gangs in racks",
    "gangs to native gangs": "gangs of 20, to native gangs",
    "gangs to plain pods": "gangs of 20, to plain pods",
    "gangs on ports to plain pods": "gangs of 20 with host ports, to plain pods",
    "gangs to Bindings alone": "gangs of 20, to Bindings alone",
    "plain pods, isolated to stock": "plain pods by Serried's scheduler, to the stock one",
}
_UNITS = {"ratio": "", "more": " s more", "seconds": " s"}


def render_ratios(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of the ratios of pods per second: a line for each ratio, a column for each cluster.

    Only Serried with default settings and plain pods in an isolated installation are shown.
    """
    places = list(dict.fromkeys(_place(result) for result in results))
    values: dict[tuple[str, str], dict[Place, float]] = {}
    for each in compute_targets(results):
        values.setdefault((each["target"], each["contender"]), {})[each["nodes"], each["filled"]] = each["value"]
    lines = [f"| pods/s of | {' | '.join(_name(place) for place in places)} |", "|---" * (1 + len(places)) + "|"]
    for target, name in _ROWS.items():
        for contender in ("serried", "plain-isolated"):
            if found := values.get((target, contender)):
                cells = [f"{found[place]:.2f}" if place in found else "" for place in places]
                lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render_targets(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of the targets: contender, cluster, measured value and bound."""
    lines = ["| target | scheduled by | cluster | measured | wanted |", "|---|---|---|---|---|"]
    for each in compute_targets(results):
        cluster = _name((each["nodes"], each["filled"]))
        wanted = f"{'at least' if each['how'] == 'ratio' else 'at most'} {each['bound']:g}{_UNITS[each['how']]}"
        cells = [each["target"], each["contender"], cluster, f"{each['value']:.2f}", wanted]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def name_cluster(result: Mapping[str, Any]) -> str:
    """Return the name of a result's cluster, like ``5,000 nodes, 70 % used``."""
    return _name(_place(result))


def _place(result: Mapping[str, Any]) -> Place:
    return result["nodes"], result.get("filled", 0)


def _name(place: Place) -> str:
    nodes, filled = place
    return f"{nodes:,} nodes" + (f", {filled} % used" if filled else "")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the plot: the row of a result that it shows."""

    label: str
    workload: str
    contender: str
    colour: str
    """The CSS class of the bar."""


_GANGS, _RACKS, _PLAIN = (
    f"{name}{WAITING}" for name in ("50 gangs of 20", "50 gangs of 20, each in one rack", "1,000 plain pods")
)
_BARS = (
    Bar("Bindings alone, no scheduler", _PLAIN, "bindings", "limit"),
    Bar("plain pods, stock scheduler", _PLAIN, "plain", "other"),
    Bar("plain pods, Serried's scheduler", _PLAIN, "plain-isolated", "ours"),
    Bar("gangs of 20, native", _GANGS, "native", "other"),
    Bar("gangs of 20, Serried", _GANGS, "serried", "ours"),
    Bar("in racks, native", _RACKS, "native", "other"),
    Bar("in racks, Serried", _RACKS, "serried", "ours"),
)
_WIDTH, _LEFT, _RIGHT, _LINE, _HEAD, _THICK = 760, 270, 60, 24, 40, 14
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.head { font-weight: 600; }
.other { fill: #8c959f; } .ours { fill: #0969da; } .limit { fill: #d0d7de; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.other { fill: #6e7681; } .ours { fill: #58a6ff; } .limit { fill: #3d444d; }
}
"""


def draw_plot(results: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with a panel of bars for each cluster: the pods per second of each contender, all to one scale."""
    panels = [(name_cluster(result), bars) for result in results if (bars := list(_find_bars(result)))]
    most = max((rate for _, bars in panels for _, rate in bars), default=1.0)
    lines, top = list[str](), 0
    for name, bars in panels:
        lines.append(f'<text class="head" x="{_LEFT}" y="{top + _HEAD - 12}">pods/s, {escape(name)}</text>')
        top += _HEAD
        for bar, rate in bars:
            lines += _draw_bar(bar, rate, (_WIDTH - _LEFT - _RIGHT) * rate / most, top)
            top += _LINE
    size = f'width="{_WIDTH}" height="{top + 10}" viewBox="0 0 {_WIDTH} {top + 10}"'
    title = "<title>Pods bound per second, all pods waiting, by way of scheduling</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    return "\n".join([head, title, f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


def _find_bars(result: Mapping[str, Any]) -> Iterator[tuple[Bar, float]]:
    """Yield the bars that the result has rows for, each with its pods per second."""
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in result["summary"]}
    for bar in _BARS:
        if rate := rates.get((bar.workload, bar.contender)):
            yield bar, rate


def _draw_bar(bar: Bar, rate: float, length: float, top: int) -> list[str]:
    baseline = top + _THICK - 2
    return [
        f'<text x="{_LEFT - 10}" y="{baseline}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect class="{bar.colour}" x="{_LEFT}" y="{top}" width="{length:.0f}" height="{_THICK}" rx="2"/>',
        f'<text x="{_LEFT + length + 6:.0f}" y="{baseline}">{rate:.0f}</text>',
    ]
