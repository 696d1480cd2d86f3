"""The API reference is the one that the CRDs have."""

import re

from bench import reference


def test_the_page_is_made_from_the_crds_of_today() -> None:
    assert reference.PAGE.read_text() == reference.render()


def test_every_field_says_what_it_is_for() -> None:
    rows = re.findall(r"^\| `(.*)` \| .* \| (.*) \|$", reference.render(), re.MULTILINE)
    assert len(rows) > 100
    assert [path for path, meaning in rows if not meaning] == []
