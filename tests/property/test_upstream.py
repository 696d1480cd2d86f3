"""Quantities, selectors and tolerations mean here what Kubernetes' own libraries make of them."""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from serried.api.node import Node, decode_node
from serried.api.resources import parse_cpu, parse_quantity
from serried.api.selectors import Taint, Toleration, read_label_selector, read_terms, selects
from serried.plan.fit import matches_terms, tolerates
from tests.support import upstream
from tests.support.upstream.quantities import NO_QUANTITIES, QUANTITIES
from tests.support.upstream.selectors import DRIVER, GPU, OTHERS, SELECTORS, decode, evaluate

pytestmark = pytest.mark.full

MOST = 2**63 - 1

NUMBERS = [
    "",
    "0",
    "1",
    "007",
    "1.",
    ".5",
    "0.5",
    "1.5",
    "0.1",
    "1.001",
    "0.0001",
    "999",
    "1000",
    "1024",
    "9999999999",
    ".",
    "9" * 17,
    "1" + "0" * 17,
    "1." + "0" * 18,
    "9223372036854775807",
    "12345678901234567890.5",
    "0." + "0" * 70 + "1",
    "9" * 300,
]
SIGNS = ["", "+", "-", "--", " "]
SUFFIXES = [
    *("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "K", "ki", "g", "i", "B"),
    *("e0", "e3", "E3", "e+3", "e-3", "E-9", "e-10", "e19", "e", "E+", "e1.5", "e3Mi", "e-19", "e99", "e-99"),
    *("e4294967296", "e4294967299", "e-4294967293", "e9223372036854775807", "e9223372036854775808"),
    *(" ", "Mi ", "KiB", "\u0663"),
]

VALUES = ["", "a", "b", "5", "05", "-5", "+5", "10", "5.0", str(MOST), str(MOST + 1), "9" * 20]
KEYS = ["a", "example.com/b", "kubernetes.io/hostname"]
OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "", "in", "Equals"]
NODE_NAMES = ["n1", "a", "5"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return upstream.build(tmp_path_factory.mktemp("upstream"))


def read(parse: Any, text: str) -> int | None:
    try:
        return int(parse(text))
    except ValueError:
        return None


def list_quantities() -> Iterator[str]:
    yield from map("".join, product(SIGNS, NUMBERS, SUFFIXES))
    draw = random.Random(37)  # noqa: S311
    for _ in range(20_000):
        yield "".join(draw.choices("0123456789.+-eEinumkKMGTP", k=draw.randint(1, 9)))


def test_every_form_of_a_quantity_has_upstreams_value(program: Path) -> None:
    texts = list(list_quantities())
    answers = upstream.ask(program, [{"Quantity": text} for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        upstreams = (answer["Value"], answer["Milli"]) if answer["Valid"] else (None, None)
        assert (read(parse_quantity, text), read(parse_cpu, text)) == upstreams, text


def test_the_table_of_quantities_is_upstreams(program: Path) -> None:
    answers = upstream.ask(program, [{"Quantity": text} for text, _, _ in QUANTITIES])
    assert [(each["Valid"], each["Value"], each["Milli"]) for each in answers] == [
        (True, value, milli) for _, value, milli in QUANTITIES
    ]
    answers = upstream.ask(program, [{"Quantity": text} for text in NO_QUANTITIES])
    assert not any(each["Valid"] for each in answers)


def draw_labels(draw: random.Random) -> dict[str, str]:
    return {key: draw.choice(VALUES[:6]) for key in KEYS if draw.random() < 0.6}


def draw_requirement(draw: random.Random, operators: list[str], keys: list[str]) -> dict[str, Any]:
    raw: dict[str, Any] = {"key": draw.choice(keys), "operator": draw.choice(operators)}
    values = draw.choice([None, [], *[draw.choices(VALUES, k=count) for count in (1, 1, 1, 2)]])
    return raw if values is None else {**raw, "values": values}


def draw_requirements(draw: random.Random, operators: list[str], keys: list[str]) -> Any:
    return draw.choice([None, [], [draw_requirement(draw, operators, keys) for _ in range(draw.randint(1, 2))]])


def test_label_selectors_select_what_upstreams_select(program: Path) -> None:
    draw = random.Random(1)  # noqa: S311
    asked: list[dict[str, Any]] = []
    for _ in range(20_000):
        selector = {
            "matchLabels": draw.choice([None, {}, draw_labels(draw)]),
            "matchExpressions": draw_requirements(draw, OPERATORS[:4], KEYS),
        }
        asked.append(
            {"LabelSelector": draw.choice([None, {}, selector, selector, selector]), "Labels": draw_labels(draw)}
        )
    for question, answer in zip(asked, upstream.ask(program, asked), strict=True):
        if not answer["Valid"]:
            continue  # no API server takes it: Exists with values, In without
        found = read_label_selector(question, "LabelSelector")
        assert (found is not None and selects(found, question["Labels"])) == answer["Matches"], question


def test_node_selectors_match_the_nodes_that_upstreams_match(program: Path) -> None:
    draw = random.Random(2)  # noqa: S311
    asked = []
    for _ in range(30_000):
        terms = [
            {
                "matchExpressions": draw_requirements(draw, OPERATORS, KEYS),
                "matchFields": draw_requirements(draw, OPERATORS, ["metadata.name", "metadata.name", "spec.x"]),
            }
            for _ in range(draw.randint(0, 2))
        ]
        metadata = {"name": draw.choice(NODE_NAMES), "labels": draw_labels(draw)}
        asked.append({"NodeSelector": {"nodeSelectorTerms": terms}, "Node": {"metadata": metadata}})
    for question, answer in zip(asked, upstream.ask(program, asked), strict=True):
        node, terms_read = decode_node(question["Node"]), read_terms(question, "NodeSelector")
        assert isinstance(node, Node)
        assert terms_read is not None
        assert matches_terms(terms_read, node) == answer["Matches"], question


def test_tolerations_tolerate_what_upstreams_tolerate(program: Path) -> None:
    keys, values, effects = ["", "a", "b"], ["", "x", "5", "05"], ["", "NoSchedule", "NoExecute", "PreferNoSchedule"]
    asked = [
        {
            "Toleration": {"key": key, "operator": operator, "value": value, "effect": effect},
            "Taint": {"key": taint[0], "value": taint[1], "effect": taint[2]},
        }
        for key, operator, value, effect in product(keys, ["", "Equal", "Exists", "Lt", "Gt", "equal"], values, effects)
        for taint in product(["a", "b"], ["", "x", "5"], ["NoSchedule", "NoExecute"])
    ]
    for question, answer in zip(asked, upstream.ask(program, asked), strict=True):
        toleration, taint = Toleration(**question["Toleration"]), Taint(**question["Taint"])
        assert tolerates([toleration], [taint]) == answer["Matches"], question


def test_selectors_say_of_every_device_what_upstreams_say(program: Path) -> None:
    devices = [(DRIVER, GPU), *OTHERS]
    asked: list[dict[str, Any]] = [
        {"Expression": expression, "Driver": driver, "Device": device}
        for expression, _ in SELECTORS
        for driver, device in devices
    ]
    beyond = 0
    for question, answer in zip(asked, upstream.ask(program, asked), strict=True):
        upstreams = (
            ("fails" if answer["Fails"] else "yes" if answer["Matches"] else "no") if answer["Valid"] else "wrong"
        )
        ours = evaluate(question["Expression"], decode(question["Device"], question["Driver"]), question["Driver"])
        beyond += ours == "beyond"
        assert ours in {upstreams, "beyond"}, question
    assert beyond <= len(asked) / 8
