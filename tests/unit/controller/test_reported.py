"""Events of owners: a text that an owner has got lately is not written again."""

from typing import cast

from controller.diff.sentences import EventText
from controller.reconciler import OwnerEvents
from controller.writes import Writes
from serried.api.parent import Owner
from tests.support.builders import job


class Told:
    """Stands in for the writer of events."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def emit(self, _owner: Owner, _kind: str, sentence: EventText) -> None:
        self.messages.append(sentence.message)


def report(reported: OwnerEvents, owner: Owner, *messages: str) -> None:
    for message in messages:
        reported.report_once(owner, EventText("Odd", message))


def test_the_same_is_said_once_also_in_turns() -> None:
    told = Told()
    report(OwnerEvents(cast("Writes", told)), job("j").value(), "a", "b", "a", "b")
    assert told.messages == ["a", "b"]


def test_an_owner_that_is_made_anew_gets_it_again() -> None:
    told = Told()
    reported = OwnerEvents(cast("Writes", told))
    report(reported, job("j").value(), "a")
    report(reported, job("j").uid("other").value(), "a")
    assert told.messages == ["a", "a"]


def test_only_the_latest_messages_are_remembered() -> None:
    told = Told()
    reported = OwnerEvents(cast("Writes", told))
    owner = job("j").value()
    report(reported, owner, *(f"value {number}" for number in range(1000)))
    told.messages.clear()
    report(reported, owner, "value 999", "value 0")
    assert told.messages == ["value 0"]
