"""Dumps of the whole database, and counts of the queries sent to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

MOMENTS = frozenset({"updated_at", "last_seen_at"})
"""Columns that record when something was observed."""


def dump(leaving_out: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return every row of our tables, with secrets in plain text, by table."""
    models = [model for model in apps.get_models() if model.__module__.startswith(("sessions_app.", "executors_app."))]
    return {
        model._meta.db_table: [
            {name: value for name, value in row.items() if name not in leaving_out}
            for row in model._default_manager.order_by("pk").values()
        ]
        for model in models
    }


def counting() -> CaptureQueriesContext:
    """Collect the statements of the block; ``len()`` counts them."""
    return CaptureQueriesContext(connection)
