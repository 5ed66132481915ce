"""Write many rows with one statement; for ingest, where the ORM would take a call for each row.

The SQL is built only from the models' own names; values are always parameters.
"""

# ruff: noqa: S608

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import orjson
from django.db import connection, models

from executors_app.encryption import EncryptedField
from executors_app.orm import is_malformed

Row = Sequence[Any]
COPY_ROWS = 50
"""From this many rows on, COPY is faster than one statement, although it takes one more round trip."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """SQL of a statement, and a converter for the values of each of its fields."""

    sql: str
    stored: Sequence[Callable[[Any], Any] | None]
    """None: stored as it is."""
    copy: str = ""
    """The COPY that inserts the same rows, where the database has one."""

    def execute(self, rows: Sequence[Row]) -> int:
        """Execute the statement for all rows (values of the fields); return how many rows it changed."""
        columns = zip(self.stored, zip(*rows, strict=True), strict=True)
        stored = [list(map(store, values)) if store else list(values) for store, values in columns]
        with connection.cursor() as cursor:
            if self.copy and len(rows) >= COPY_ROWS:
                with connection.wrap_database_errors, cursor.copy(self.copy) as copy:
                    for row in zip(*stored, strict=True):
                        copy.write_row(row)
            elif connection.vendor == "postgresql":
                # One array for each column (unnest), so that the statement is the same for any number of rows.
                cursor.execute(self.sql, stored)
            else:
                cursor.executemany(self.sql, list(zip(*stored, strict=True)))
            return int(cursor.rowcount)


def insert_rows(model: type[models.Model], names: tuple[str, ...], rows: Sequence[Row]) -> None:
    """Insert rows, each given as the values of the fields ``names``."""
    if rows:
        _insert(model, names).execute(rows)


def insert_row(instance: models.Model) -> None:
    """Insert one new instance as it is: sends no signal and fills in no ``auto_now_add`` field."""
    names, attributes = _columns_of(type(instance))
    insert_rows(type(instance), names, [[getattr(instance, name) for name in attributes]])
    instance._state.adding = False  # noqa: SLF001  (as ``save`` leaves it)


def update_row(instance: models.Model, names: Collection[str]) -> None:
    """Write these fields and the ``auto_now`` fields of an instance, as ``save`` would, but send no signal."""
    model = type(instance)
    written = tuple(sorted({*names, *_auto_now_fields(model)}))
    values = [_field(model, name).pre_save(instance, False) for name in written]
    update_rows(model, written, [(*values, instance.pk)])


def update_rows(model: type[models.Model], names: tuple[str, ...], rows: Sequence[Row], *, grow: str = "") -> int:
    """Set the fields ``names`` of rows given as ``(*values, primary key)``; return how many rows changed.

    The value of the text field ``grow`` is appended.
    """
    if rows:
        return _update(model, names, grow).execute(rows)
    return 0


@cache
def _columns_of(model: type[models.Model]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and the attribute names of all fields."""
    fields = model._meta.concrete_fields
    return tuple(field.name for field in fields), tuple(field.attname for field in fields)


@cache
def _auto_now_fields(model: type[models.Model]) -> tuple[str, ...]:
    """Return the names of the ``auto_now`` fields."""
    return tuple(field.name for field in model._meta.concrete_fields if getattr(field, "auto_now", False))


@cache
def _insert(model: type[models.Model], names: tuple[str, ...]) -> _Statement:
    fields = [_field(model, name) for name in names]
    into, stored = f"{_table(model)} ({', '.join(map(_column, fields))})", list(map(_stored, fields))
    if connection.vendor == "postgresql":
        sql = f"INSERT INTO {into} SELECT * FROM unnest({_arrays(fields)})"
        return _Statement(sql, stored, copy=f"COPY {into} FROM STDIN")
    return _Statement(f"INSERT INTO {into} VALUES ({', '.join(['%s'] * len(fields))})", stored)


@cache
def _update(model: type[models.Model], names: tuple[str, ...], grow: str) -> _Statement:
    fields, key, table = [_field(model, name) for name in names], model._meta.pk, _table(model)
    all_fields = [*fields, key]
    if connection.vendor == "postgresql":
        columns = ", ".join(map(_column, all_fields))
        sets = ", ".join(_set(table, field, f"new.{_column(field)}", grow) for field in fields)
        source = f" FROM unnest({_arrays(all_fields)}) AS new ({columns})"
        sql = f"UPDATE {table} SET {sets}{source} WHERE {table}.{_column(key)} = new.{_column(key)}"
    else:
        sets = ", ".join(_set(table, field, "%s", grow) for field in fields)
        sql = f"UPDATE {table} SET {sets} WHERE {_column(key)} = %s"
    return _Statement(sql, list(map(_stored, all_fields)))


def _set(table: str, field: Any, value: str, grow: str) -> str:
    column = _column(field)
    if field.name == grow:
        return f"{column} = {table}.{column} || {value}"
    return f"{column} = {value}"


def _field(model: type[models.Model], name: str) -> Any:
    return model._meta.get_field(name)


def _table(model: type[models.Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _column(field: Any) -> str:
    return connection.ops.quote_name(field.column)


def _arrays(fields: Sequence[Any]) -> str:
    return ", ".join(
        f"%s::{field.rel_db_type(connection) if field.primary_key else field.db_type(connection)}[]" for field in fields
    )


def _stored(field: Any) -> Callable[[Any], Any] | None:
    if isinstance(field, models.ForeignKey):
        return _stored(field.target_field)
    if isinstance(field, models.JSONField):
        return _json
    if isinstance(field, models.DateTimeField) and connection.vendor == "sqlite":
        return _utc_text
    if isinstance(field, models.UUIDField) and not connection.features.has_native_uuid_field:
        return _hex
    if isinstance(field, EncryptedField):
        return partial(field.get_db_prep_save, connection=connection)
    return None


def _hex(value: uuid.UUID | None) -> str | None:
    if value is None:
        return None
    return value.hex


def _utc_text(value: datetime | None) -> Any:
    """Adapt a time for SQLite as Django does, but faster if it is in UTC: each line of a batch has its own."""
    if value is not None and value.tzinfo is UTC:
        return str(value.replace(tzinfo=None))
    return connection.ops.adapt_datetimefield_value(value)


def _json(value: Any) -> str | None:
    """Serialize JSON; a malformed value that was not changed is stored again as it was read."""
    if value is None:
        return None
    if is_malformed(value) and not value:
        if value.stored is None:
            return None
        return json.dumps(value.stored)
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except TypeError:  # for example a number beyond 64 bits, which the slower serializer accepts
        return json.dumps(value)
