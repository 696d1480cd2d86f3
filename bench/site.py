"""Adapt the pages of docs for the web site (a hook of `mkdocs.yml`; `make site`).

The site has no pages for files outside of `docs`, so links to them become plain text. Comments for `bench.quotes` are
removed.
"""

import re
from typing import Any

_LEAVING_DOCS = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z]+\.md|examples|tests|bench|manifests)[^)]*\)")
_QUOTES_COMMENT = re.compile(r"<!-- (?:not )?measured.*?-->\n?", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the Markdown of a page as the site shows it. MkDocs calls this for each page."""
    return _LEAVING_DOCS.sub(r"\1", _QUOTES_COMMENT.sub("", markdown))
