"""Collect logged errors, also in tests with many examples."""

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
def collect_errors() -> Iterator[list[str]]:
    """Yield a list that receives every error logged until the block ends."""
    handler = _Errors()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.said
    finally:
        logging.getLogger().removeHandler(handler)
