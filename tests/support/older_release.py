"""An extender of the release before Reservations said their format: those that it writes say none.

`tests.support.starting` has a process import this at its start; nobody else may.
"""

from typing import Any

from extender.binding import reservations
from serried.decode.reservations import encode_reservation
from serried.model.reservation import Reservation


def encode_without_format(reservation: Reservation, term: str) -> dict[str, Any]:
    """The object's spec as that release wrote it."""
    return {name: value for name, value in encode_reservation(reservation, term).items() if name != "format"}


vars(reservations)["encode_reservation"] = encode_without_format
