"""Read the code blocks of documentation pages, so that tests can run them unchanged."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find_code_blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language in the text of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def read_code_block(page: str, heading: str, language: str) -> str:
    """Return the first code block of a language below a heading of a page."""
    below = (ROOT / page).read_text().split(f"\n{heading}\n", 1)[1]
    block = next(iter(find_code_blocks(below, language)), None)
    assert block is not None, f"{page}, {heading}: no block of {language}"
    return block
