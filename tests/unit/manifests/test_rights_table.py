"""Every right that is shipped has a story that needs it, and no story is told of another."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.e2e.roles.rights import PROCESSES, ROLES, Grant, leave_out, list_grants
from tests.e2e.roles.table import ELECTION_ROWS, FALLBACK_ROWS, NATIVE_ROWS, OTHER_ROLES
from tests.unit.manifests.shipped import MANIFESTS, Document

ROWS = (*NATIVE_ROWS, *FALLBACK_ROWS, *ELECTION_ROWS)


def list_roles(documents: Sequence[Document]) -> Iterator[Document]:
    return (each for each in documents if each.kind in {"Role", "ClusterRole"})


def list_our_roles(documents: Sequence[Document]) -> Iterator[tuple[Document, str]]:
    """Return the roles of the three accounts, each with its account."""
    accounts = {path.rpartition("/")[2]: account for account, paths in ROLES.items() for path in paths}
    return ((role, accounts[role.name]) for role in list_roles(documents) if role.name in accounts)


def list_shipped(documents: Sequence[Document]) -> Iterator[Grant]:
    for role, account in list_our_roles(documents):
        yield from list_grants(account, role.content["rules"])


def test_every_right_that_is_shipped_has_a_story_and_every_story_a_right(documents: Sequence[Document]) -> None:
    told = {grant for row in ROWS for grant in row.grants}
    assert told == set(list_shipped(documents))


def test_no_right_is_shipped_twice(documents: Sequence[Document]) -> None:
    assert max(Counter(list_shipped(documents)).values()) == 1


def test_every_other_role_has_a_story(documents: Sequence[Document]) -> None:
    ours = {role.name for role, _ in list_our_roles(documents)}
    assert {role.name for role in list_roles(documents)} - ours == OTHER_ROLES.keys()


def test_the_stories_of_the_other_roles_exist() -> None:
    for place in OTHER_ROLES.values():
        path, _, name = place.partition("::")
        assert re.search(rf"^def {name}\(", (MANIFESTS.parent / path).read_text(), re.MULTILINE), place


def test_every_account_is_told_of() -> None:
    assert {row.account for row in ROWS} == PROCESSES.keys()


def test_what_is_shown_in_place_of_a_right_is_a_right_of_the_same_account(documents: Sequence[Document]) -> None:
    shipped = {grant._replace(name="") for grant in list_shipped(documents)}
    for row in ROWS:
        assert {row.find_shown(grant)._replace(name="") for grant in row.grants} <= shipped, row


def test_rules_without_a_right_grant_all_others(documents: Sequence[Document]) -> None:
    for role, account in list_our_roles(documents):
        rules = role.content["rules"]
        granted = list(list_grants(account, rules))
        for taken in granted:
            assert list(list_grants(account, leave_out(account, rules, taken))) == [g for g in granted if g != taken]
