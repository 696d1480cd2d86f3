"""Make an extender write and read records like the release before Reservations had a format field and were packed.

Only `tests.support.preload` may import this module, into a process of its own.
"""

from extender.core.binding import records as reservations
from tests.support.older_records import OLDER

vars(reservations).update(OLDER)
