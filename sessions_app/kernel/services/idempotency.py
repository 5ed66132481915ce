"""Idempotency keys: repeating a request whose response was lost creates nothing twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import IntegrityError, models, transaction

from executors_app.machine.costly_work import begin_costly_work
from sessions_app.kernel.services.errors import IdempotencyKeyReused, Invalid

Row = TypeVar("Row", bound=models.Model)
IdempotencyMark = dict[str, str]
"""Values of the fields ``idempotency_key`` and ``asked``, which identify a row's request."""

KEY_LIMIT = 128


def mark_request(key: str, values: Mapping[str, Any]) -> IdempotencyMark:
    """Return what identifies a request with an idempotency key; empty without one. Raises Invalid.

    ``values`` may contain megabytes, so this is not for transactions.
    """
    if not key:
        return {}
    if len(key) > KEY_LIMIT or not key.isprintable():
        raise Invalid(f"idempotency_key must be 1 to {KEY_LIMIT} printable characters.", field="idempotency_key")
    return {"idempotency_key": key, "asked": _digest(values)}


def create_once(
    rows: models.QuerySet[Row], mark: IdempotencyMark, make: Callable[[IdempotencyMark], Row]
) -> tuple[Row, bool]:
    """Return the row of ``rows`` that was created with this mark, else create it with ``make``; and whether it is new.

    With an empty mark, always creates one. Raises IdempotencyKeyReused if another request had its key. Of two
    concurrent requests one waits for the other, because a unique constraint of the table covers the key.
    """
    if not mark:
        return make({}), True
    earlier = _find_existing(rows, mark)
    if earlier is not None:
        return earlier, False
    try:
        # A savepoint: after a failed INSERT, PostgreSQL would refuse everything else in the caller's transaction.
        with transaction.atomic():
            return make(mark), True
    except IntegrityError:
        # A concurrent request with the same key committed between our look-up and our INSERT.
        earlier = _find_existing(rows, mark)
        if earlier is None:
            raise
        return earlier, False


def _find_existing(rows: models.QuerySet[Row], mark: IdempotencyMark) -> Row | None:
    earlier = rows.filter(idempotency_key=mark["idempotency_key"]).first()
    if earlier is not None and getattr(earlier, "asked", "") != mark["asked"]:
        raise IdempotencyKeyReused(id=str(earlier.pk))
    return earlier


def _digest(request: Mapping[str, Any]) -> str:
    """Return a digest of the request; empty values count as not given."""
    begin_costly_work("a digest of a request")
    values = {name: str(value) for name, value in request.items() if value not in (None, "")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
