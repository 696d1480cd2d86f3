"""An extender of the release before Reservations said their format and were packed: it writes and reads as that one.

`tests.support.starting` has a process import this at its start; nobody else may.
"""

from extender.core.binding import records as reservations
from tests.support.older_records import OLDER

vars(reservations).update(OLDER)
