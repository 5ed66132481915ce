"""Many rows in one statement each: what the hot path writes with, where the ORM would take one call a row.

The statements are put together of the models' own names alone; values are always parameters.
"""

# ruff: noqa: S608

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from django.db import connection, models

Row = Sequence[Any]


def insert_rows(model: type[models.Model], names: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert rows, given as the values of the fields ``names``."""
    if not rows:
        return
    fields = [_field(model, name) for name in names]
    into = f"INSERT INTO {_table(model)} ({', '.join(map(_column, fields))})"
    if connection.vendor == "postgresql":
        _execute(f"{into} SELECT * FROM unnest({_arrays(fields)})", _by_column(fields, rows))
    else:
        _execute_many(f"{into} VALUES ({', '.join(['%s'] * len(fields))})", _by_row(fields, rows))


def update_rows(model: type[models.Model], names: Sequence[str], rows: Sequence[Row], *, grow: str = "") -> None:
    """Set the fields ``names`` of rows given as ``(primary key, *values)``; ``grow`` is a text that is added to."""
    if not rows:
        return
    key, *fields = [model._meta.pk, *(_field(model, name) for name in names)]
    table = _table(model)
    if connection.vendor == "postgresql":
        columns = ", ".join(map(_column, [key, *fields]))
        sets = ", ".join(_set(table, field, f"new.{_column(field)}", grow) for field in fields)
        _execute(
            f"UPDATE {table} SET {sets} FROM unnest({_arrays([key, *fields])}) AS new ({columns})"
            f" WHERE {table}.{_column(key)} = new.{_column(key)}",
            _by_column([key, *fields], rows),
        )
    else:
        sets = ", ".join(_set(table, field, "%s", grow) for field in fields)
        turned = [(*values, key_value) for key_value, *values in _by_row([key, *fields], rows)]
        _execute_many(f"UPDATE {table} SET {sets} WHERE {_column(key)} = %s", turned)


def _set(table: str, field: Any, value: str, grow: str) -> str:
    column = _column(field)
    return f"{column} = {table}.{column} || {value}" if field.name == grow else f"{column} = {value}"


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


def _by_row(fields: Sequence[Any], rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return list(zip(*_by_column(fields, rows), strict=True))


def _by_column(fields: Sequence[Any], rows: Sequence[Row]) -> list[list[Any]]:
    """The values of each field as the database stores them."""
    columns = zip(*rows, strict=True)
    return [list(map(_stored(field), values)) for field, values in zip(fields, columns, strict=True)]


def _stored(field: Any) -> Callable[[Any], Any]:
    if isinstance(field, models.ForeignKey):
        return _stored(field.target_field)
    if isinstance(field, models.JSONField):
        return json.dumps
    if isinstance(field, models.DateTimeField):
        return connection.ops.adapt_datetimefield_value
    if isinstance(field, models.UUIDField) and not connection.features.has_native_uuid_field:
        return attrgetter("hex")
    return lambda value: value


def _execute(sql: str, values: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def _execute_many(sql: str, rows: Sequence[Row]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(sql, rows)
