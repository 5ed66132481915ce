"""Making something once, however often it is asked for: a lost answer that is asked for again makes no second one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import IntegrityError, models, transaction

from sessions_app.services.errors import IdempotencyKeyReused, Invalid

Row = TypeVar("Row", bound=models.Model)
IdempotencyMark = dict[str, str]
"""Fields by which a row is found again: ``idempotency_key`` and ``asked``."""

KEY_LIMIT = 128


def create_once(
    rows: models.QuerySet[Row], key: str, asked: Mapping[str, Any], make: Callable[[IdempotencyMark], Row]
) -> tuple[Row, bool]:
    """What was made with ``key`` among ``rows``, else what ``make`` makes with its mark; (row, whether it is new).

    Without a key each is a new one. Raises IdempotencyKeyReused where something else was asked with it, and Invalid.
    Who asks at the same time waits for the first: a unique constraint of the rows' table holds them apart.
    """
    if not key:
        return make({}), True
    if len(key) > KEY_LIMIT or not key.isprintable():
        raise Invalid(f"idempotency_key is 1 to {KEY_LIMIT} printable characters.", field="idempotency_key")
    mark = {"idempotency_key": key, "asked": _digest(asked)}
    earlier = _find_existing(rows, mark)
    if earlier is not None:
        return earlier, False
    try:
        with transaction.atomic():
            return make(mark), True
    except IntegrityError:
        earlier = _find_existing(rows, mark)
        if earlier is None:
            raise
        return earlier, False


def _find_existing(rows: models.QuerySet[Row], mark: IdempotencyMark) -> Row | None:
    earlier = rows.filter(idempotency_key=mark["idempotency_key"]).first()
    if earlier is not None and getattr(earlier, "asked", "") != mark["asked"]:
        raise IdempotencyKeyReused(id=str(earlier.pk))
    return earlier


def _digest(asked: Mapping[str, Any]) -> str:
    """What was asked, in so few characters; what is empty was not asked."""
    said = {name: str(value) for name, value in asked.items() if value not in (None, "")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
