"""What was logged as an error, also where many examples share one test."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(f"{record.getMessage()} {getattr(record, 'err', '')} {record.exc_info}")


@contextmanager
def hear_errors() -> Iterator[list[str]]:
    """A list to which every error that is logged is added."""
    handler = _Errors()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.said
    finally:
        logging.getLogger().removeHandler(handler)
