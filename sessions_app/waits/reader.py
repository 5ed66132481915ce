"""Read open waits of all kinds: for people, programs, mail, webhooks and metrics. Never writes a wait."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import CharField, Count, F, Min, QuerySet, Value
from django.db.models.functions import Cast

from sessions_app import open_waits
from sessions_app.accounts.authorization import writers_among
from sessions_app.attention.services.wording import word_items
from sessions_app.models import AttentionItem
from sessions_app.waits.rules.open_waits import Actor, OpenWaitRecord, shorten_reason
from sessions_app.waits.sources import WaitSource

_PARENTS: Final = ("session__task__team", "session__owner")
_LARGE_COLUMNS: Final = ("session__metadata", "session__usage")

_INDEX: Final = ("open_kind", "open_id", "open_since")
"""Columns of ``list_waits``."""


def wait_kinds() -> list[str]:
    """Return the names of all kinds."""
    return [source.kind for source in open_waits.WAIT_SOURCES]


def list_waits(user: User, *, kind: str = "", **columns: Any) -> QuerySet[Any, Any]:
    """Return the open waits of the user's teams, the oldest first, as ``load_waits`` takes them; one query.

    ``kind`` is one of ``wait_kinds`` or empty; ``columns`` filters by columns of the waits' rows, such as ``session``.
    """
    wanted = [source for source in open_waits.WAIT_SOURCES if kind in ("", source.kind)]
    return _union((source, source.rows().visible_to(user).filter(**columns)) for source in wanted)


def waits_without_item(user: User, most: int, **columns: Any) -> list[OpenWaitRecord]:
    """Return open waits of the user's teams that no inbox item is about, at most ``most``, the oldest first."""
    wanted = [source for source in open_waits.WAIT_SOURCES if not source.item_prefix]
    if not wanted:
        return []
    rows = _union((source, source.rows().visible_to(user).filter(**columns)) for source in wanted)
    return load_waits(list(rows[:most]))


def waits_of_session(session_id: uuid.UUID, most: int) -> list[OpenWaitRecord]:
    """Return the open waits of a session, at most ``most``. The caller has checked who may see it."""
    rows = ((source, source.rows().filter(session=session_id)) for source in open_waits.WAIT_SOURCES)
    return load_waits(list(_union(rows)[:most]))


def _union(found: Iterable[tuple[WaitSource, QuerySet[Any]]]) -> QuerySet[Any, Any]:
    first, *others = [
        rows.order_by()
        .annotate(
            open_kind=Value(source.kind, CharField()), open_id=Cast("pk", CharField()), open_since=F(source.since)
        )
        .values_list(*_INDEX)
        for source, rows in found
    ]
    united: QuerySet[Any, Any] = first.union(*others, all=True).order_by("open_since", "open_kind", "open_id")
    return united


def load_waits(listed: Sequence[tuple[Any, ...]]) -> list[OpenWaitRecord]:
    """Return the listed waits that are still open; one query for each kind among them, and at most four more.

    Raises RuntimeError in a transaction, because what agents say is searched for secrets.
    """
    ids: dict[str, list[str]] = defaultdict(list)
    for kind, row_id, _ in listed:
        ids[kind].append(row_id)
    found = [_Found(source, row) for source in open_waits.WAIT_SOURCES for row in _rows_of(source, ids[source.kind])]
    records = _records(found, _items_by_key([each.item_key for each in found]))
    return sorted(records, key=lambda wait: (wait.since, wait.kind, wait.id))


def waits_of_items(items: Sequence[AttentionItem]) -> dict[str, OpenWaitRecord]:
    """Return the open waits that these inbox items are about, by the key of the item. The items' texts are final."""
    by_key = {item.key: item for item in items}
    found = []
    for source in open_waits.WAIT_SOURCES:
        prefix = source.item_prefix
        if prefix:
            found += [
                _Found(source, row)
                for row in _rows_of(source, [key.removeprefix(prefix) for key in by_key if key.startswith(prefix)])
                if source.item_key(row.pk) in by_key
            ]
    return {wait.item_key: wait for wait in _records(found, by_key)}


@dataclass(frozen=True, slots=True)
class WaitCount:
    """How many waits of a kind are open in the deployment, and since when the oldest is."""

    kind: str
    count: int
    oldest: datetime | None


def count_waits() -> Iterator[WaitCount]:
    """Count the open waits of all teams by kind; one query for each kind."""
    for source in open_waits.WAIT_SOURCES:
        found = source.rows().order_by().aggregate(count=Count("pk"), oldest=Min(source.since))
        yield WaitCount(source.kind, found["count"], found["oldest"])


@dataclass(frozen=True, slots=True)
class _Found:
    source: WaitSource
    row: Any

    @property
    def item_key(self) -> str:
        return self.source.item_key(self.row.pk)


def _rows_of(source: WaitSource, ids: Sequence[str]) -> list[Any]:
    if not ids:
        return []
    key_field = source.rows().model._meta.pk
    wanted = [row_id for row_id in ids if _is_key(key_field, row_id)]
    rows = source.rows().filter(pk__in=wanted).annotate(open_deadline=source.deadline_column)
    return list(rows.select_related(*_PARENTS).defer(*_LARGE_COLUMNS))


def _is_key(field: Any, row_id: str) -> bool:
    """Whether a row can have this id: the keys of inbox items that another release has written may end differently."""
    try:
        field.to_python(row_id)
    except ValidationError:
        return False
    return True


def _items_by_key(keys: Sequence[str]) -> dict[str, AttentionItem]:
    """Return the open inbox items with these keys, with what they quote."""
    wanted = [key for key in keys if key]
    if not wanted:
        return {}
    rows = AttentionItem.objects.filter(key__in=wanted, resolved_at=None)
    items = list(rows.select_related("task__team", "session"))
    word_items(items)
    return {item.key: item for item in items}


def _records(found: Sequence[_Found], items: Mapping[str, AttentionItem]) -> list[OpenWaitRecord]:
    owners = {each.row.session.owner_id for each in found if each.row.session.owner_id is not None}
    writers = writers_among(owners)
    return [_record(each, items.get(each.item_key), writers) for each in found]


def _record(found: _Found, item: AttentionItem | None, writers: Collection[tuple[int, int]]) -> OpenWaitRecord:
    source, row = found.source, found.row
    session, task = row.session, row.session.task
    details = source.describe(row)
    actor, actor_name = details.actor, ""
    if actor is Actor.PERSON and (session.owner_id, task.team_id) not in writers:
        actor = Actor.TEAM
    if actor is Actor.PERSON:
        actor_name = session.owner.get_username()
    elif actor is Actor.TEAM:
        actor_name = task.team.name
    return OpenWaitRecord(
        kind=source.kind,
        label=source.label,
        id=str(row.pk),
        item_key=found.item_key,
        session_id=session.id,
        task_id=task.id,
        task_title=task.title,
        team=task.team.name,
        since=getattr(row, source.since),
        deadline=row.open_deadline,
        actor=actor,
        actor_name=actor_name,
        reason=shorten_reason(item.why if item is not None and item.why else details.reason),
        wake_up=details.wake_up,
    )
