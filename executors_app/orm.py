"""Extensions of Django's ORM: JSON columns of a known shape, and queries that are compiled once.

Django compiles a queryset again each time, which takes longer than a lookup by primary key. A `PreparedQuery` is for
queries that the supervisor runs for every batch of journal lines, every sweep and every restart of an agent, and for
the two that pages run most: the number in the header, and what sessions of a list need. ``make bench`` compares them
with the same queryset (``--only queries``). Queries that run less often are plain querysets, because a prepared one
depends on private interfaces of the ORM's compiler.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models import Model, QuerySet
from django.db.models.fields.json import KeyTransform

M = TypeVar("M", bound=Model)
Key = uuid.UUID | str | int | datetime | list[uuid.UUID]
ID_PLACEHOLDER: Final = uuid.uuid4()
"""Stands for an id while the SQL is compiled."""
NUMBER_PLACEHOLDER: Final = 1_928_374_650
"""Stands for an id that is a number."""
IDS_PLACEHOLDER: Final = [uuid.uuid4()]
"""Stands for a list of ids."""
MOMENT_PLACEHOLDER: Final = datetime(1900, 1, 2, tzinfo=UTC)
"""Stands for a moment."""

FEW: Final = 4
"""For as many keys, one prepared query each costs less than one queryset for all."""


class JSONFormField(forms.JSONField):
    """Django's JSON form field, with the problem, line and column in its error message."""

    def to_python(self, value: Any) -> Any:
        """Return the JSON value of a text; raises ValidationError."""
        try:
            return super().to_python(value)
        except ValidationError:
            raise ValidationError(_describe_problem(value), code="invalid") from None


def _describe_problem(value: Any) -> str:
    try:
        json.loads(value)
    except json.JSONDecodeError as error:
        return f"This is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
    except (TypeError, ValueError, RecursionError):
        pass
    return "This is not valid JSON."


class MalformedObject(dict[str, Any]):
    """An empty object that stands for a stored value that is not an object."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


class MalformedList(list[Any]):
    """An empty list that stands for a stored value that is not a list."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


def is_malformed(value: Any) -> bool:
    """Whether a column held a value of another shape."""
    return isinstance(value, MalformedObject | MalformedList)


class _ShapedField(models.JSONField):  # type: ignore[type-arg,unused-ignore]
    """A JSON column that always reads as its shape; migrations see a plain JSON column."""

    shape: type[Any]
    misfit: type[Any]

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the value, or an empty one that remembers what was stored."""
        found = super().from_db_value(value, expression, connection)  # type: ignore[misc,unused-ignore]
        if isinstance(expression, KeyTransform) or isinstance(found, self.shape):
            return found
        return self.misfit(found)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Write a malformed value back unchanged unless it was edited."""
        kept = value.stored if is_malformed(value) and not value else value
        return super().get_db_prep_value(kept, connection, prepared)

    def formfield(self, **kwargs: Any) -> Any:
        """Return a form field that locates JSON errors."""
        return super().formfield(**{"form_class": JSONFormField, **kwargs})

    def deconstruct(self) -> Any:
        """Deconstruct as Django's JSONField: the column is the same."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


@models.UUIDField.register_lookup
@models.ForeignKey.register_lookup
class Among(models.Lookup):  # type: ignore[type-arg,unused-ignore]
    """The lookup ``__among`` is like ``__in`` for a list of ids, of any length as one parameter.

    So the query can be prepared, and costs no more to compile for many ids than for one.
    """

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Compare with the elements of a JSON list."""
        left, parameters = self.process_lhs(compiler, connection)
        return f"{left} IN (SELECT value FROM json_each(%s))", (*parameters, _to_database(self.rhs))  # noqa: S608

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Compare with the elements of an array."""
        left, parameters = self.process_lhs(compiler, connection)
        return f"{left} = ANY(%s)", (*parameters, _to_database(self.rhs))


class ObjectField(_ShapedField):
    """A JSON object."""

    shape, misfit = dict, MalformedObject


class ListField(_ShapedField):
    """A JSON list."""

    shape, misfit = list, MalformedList


@dataclass(frozen=True, slots=True)
class _CompiledQuery(Generic[M]):
    model: type[M]
    sql: str
    parameters: tuple[Any, ...]
    key_positions: Sequence[tuple[int, int]]
    """Index of a parameter that is a key, and index of that key."""
    columns: Sequence[str]
    """Attribute names of the model's columns; empty for ``values_list``."""
    converters: Sequence[tuple[int, Any, Sequence[Callable[..., Any]]]]
    """Index, column and converters of what the database returns in another type than Python's."""


class PreparedQuery(Generic[M]):
    """A queryset as a function of keys, compiled on first use.

    ``query`` is called once, with ``placeholders`` in place of the keys (default: one id), so it must depend on nothing
    else that changes. It must not use ``select_related``.
    """

    def __init__(self, query: Callable[..., QuerySet[M, Any]], *placeholders: Key):
        self.query = query
        self._placeholders = placeholders or (ID_PLACEHOLDER,)
        self._compiled: _CompiledQuery[M] | None = None

    def all(self, *keys: Key) -> list[M]:
        """Return the matching rows as instances."""
        compiled = self._compile()
        return [compiled.model.from_db(DEFAULT_DB_ALIAS, compiled.columns, row) for row in self.values(*keys)]

    def first(self, *keys: Key) -> M | None:
        """Return the first matching row; the query itself should match at most one."""
        return next(iter(self.all(*keys)), None)

    def values(self, *keys: Key) -> list[list[Any]]:
        """Return the matching rows as lists of column values; for queries with ``values_list``."""
        compiled = self._compile()
        parameters = list(compiled.parameters)
        for at, number in compiled.key_positions:
            parameters[at] = _to_database(keys[number])
        with connection.cursor() as cursor:
            cursor.execute(compiled.sql, parameters)
            return [_to_python(compiled, row) for row in cursor.fetchall()]

    def _compile(self) -> _CompiledQuery[M]:
        if self._compiled is None:
            self._compiled = _compile_query(self.query(*self._placeholders), self._placeholders)
        return self._compiled


class KeyedQuery(Generic[M]):
    """A queryset as a function of a collection of keys, compiled once for a few of them: for few sessions at a time.

    ``query`` filters one column by ``__in``; otherwise it is as in `PreparedQuery`. ``placeholder`` is a key of the
    column's type. The rows of several keys have no order.
    """

    def __init__(self, query: Callable[[Collection[Any]], QuerySet[M, Any]], placeholder: Any = ID_PLACEHOLDER):
        self._query = query
        self.of_one = PreparedQuery(lambda key: query([key]), placeholder)

    def all(self, keys: Collection[Any]) -> list[M]:
        """Return the matching rows as instances."""
        if len(keys) > FEW:
            return list(self._query(keys))
        return [row for key in keys for row in self.of_one.all(key)]

    def values(self, keys: Collection[Any]) -> Collection[Sequence[Any]]:
        """Return the matching rows as column values; for queries with ``values_list``."""
        if len(keys) > FEW:
            return self._query(keys)
        return [row for key in keys for row in self.of_one.values(key)]


def _compile_query(query: QuerySet[M, Any], placeholders: Sequence[Key]) -> _CompiledQuery[M]:
    compiler = query.query.get_compiler(DEFAULT_DB_ALIAS)
    sql, parameters = compiler.as_sql()
    stand_ins = [_to_database(placeholder) for placeholder in placeholders]
    positions = [(at, stand_ins.index(value)) for at, value in enumerate(parameters) if value in stand_ins]
    selected = [column for column, *_ in compiler.select]
    converters = [(at, column, convert) for at, (convert, column) in compiler.get_converters(selected).items()]
    row_info = compiler.klass_info or {"select_fields": ()}
    columns = [str(selected[at].target.attname) for at in row_info["select_fields"]]
    return _CompiledQuery(query.model, sql, tuple(parameters), positions, columns, converters)


def _to_python(compiled: _CompiledQuery[Any], row: Sequence[Any]) -> list[Any]:
    values = list(row)
    for at, column, converters in compiled.converters:
        for convert in converters:
            values[at] = convert(values[at], column, connection)
    return values


def _to_database(key: Key) -> Any:
    if isinstance(key, datetime):
        return connection.ops.adapt_datetimefield_value(key)
    if connection.features.has_native_uuid_field:
        return key
    if isinstance(key, uuid.UUID):
        return key.hex
    if isinstance(key, list):
        return json.dumps([each.hex for each in key])
    return key
