"""What commands write for people: text as it is."""

from collections.abc import Callable

import pytest
from rich.console import RenderableType

from serried.cli.output import OutputFormat, make_table, write

Draw = Callable[[str], RenderableType]

TEXTS = [
    pytest.param("denied the request: [need-owner] owner is missing", id="brackets of a webhook's refusal"),
    pytest.param("[/spec/x] is missing", id="what rich would take for the end of a style"),
    pytest.param("image :100: of [bold]main", id="names that rich knows"),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda text: text, id="a sentence"),
        pytest.param(lambda text: make_table((text,), [("a cell that is wider than the title" * 3,)]), id="a heading"),
        pytest.param(
            lambda text: make_table(("A",), [("a cell that is wider than the title" * 3,)], title=text), id="a title"
        ),
        pytest.param(lambda text: make_table(("A",), [(text,)]), id="a cell"),
    ],
)
def test_text_is_written_as_it_is(capsys: pytest.CaptureFixture[str], text: str, draw: Draw) -> None:
    write({}, OutputFormat.TABLE, lambda: [draw(text)])
    assert text in capsys.readouterr().out
