"""What pages say otherwise on the site than in the repository (a hook of `mkdocs.yml`; `make site`).

A link to a file outside of `docs` has no page to lead to there: its text stays. Remarks for `bench.quotes` go.
"""

import re
from typing import Any

_LEAVING_DOCS = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z]+\.md|examples|tests|bench|manifests)[^)]*\)")
_REMARK = re.compile(r"<!-- (?:not )?measured.*?-->\n?", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page as the site shows it."""
    return _LEAVING_DOCS.sub(r"\1", _REMARK.sub("", markdown))
