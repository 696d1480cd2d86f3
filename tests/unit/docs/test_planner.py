"""The examples of docs/contributing/planner.md show what the planner returns."""

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_session_of_the_page_goes_as_it_stands_there() -> None:
    page = ROOT / "docs" / "contributing" / "planner.md"
    shown = page.read_text().replace("```python\n", "").replace("```\n", "\n")
    session = doctest.DocTestParser().get_doctest(shown, {}, "planner", str(page), 0)
    assert len(session.examples) > 15
    assert doctest.DocTestRunner().run(session).failed == 0
