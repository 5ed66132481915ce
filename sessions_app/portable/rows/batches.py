"""Write many rows in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

Row = TypeVar("Row")
BATCH_SIZE: Final = 1000


def in_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield the rows in batches of at most ``BATCH_SIZE``."""
    for start in range(0, len(rows), BATCH_SIZE):
        yield rows[start : start + BATCH_SIZE]


def insert_rows(rows: Sequence[Any], times: Sequence[datetime]) -> None:
    """Insert rows and then set ``created_at``, which an insert overwrites."""
    if not rows:
        return
    manager = type(rows[0])._default_manager
    manager.bulk_create(rows)
    for row, time in zip(rows, times, strict=True):
        row.created_at = time
    manager.bulk_update(rows, ["created_at"], batch_size=BATCH_SIZE)
