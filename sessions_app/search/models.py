"""The index of the search: documents, how far each session is indexed, and how both are written."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models, transaction
from django.db.models import Count
from django.utils import timezone

from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import Task, TaskSession, choices
from sessions_app.search import backends
from sessions_app.search.rules.documents import MAX_DOCUMENTS, DocumentKind
from sessions_app.stream.models import Message

_AT_ONCE = 500
"""Rows named in one statement."""


class SearchDocument(TeamModel):
    """A text that can be found: without secrets, and of bounded length. It is never changed, only replaced.

    Releases without this table may delete what it refers to, so the database does not enforce these references. The
    databases' own index of its words is not known to Django: see ``backends.py``.
    """

    team_path = "task__team"

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=10, choices=choices(DocumentKind))
    task = models.ForeignKey(Task, models.CASCADE, related_name="search_documents", db_constraint=False)
    session = models.ForeignKey(
        TaskSession, models.CASCADE, null=True, related_name="search_documents", db_constraint=False
    )
    message = models.OneToOneField(
        Message, models.CASCADE, null=True, related_name="search_document", db_constraint=False
    )
    """None: it is a task's."""
    seq = models.BigIntegerField(default=0)
    """That of the message."""
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    """Who wrote it; None: an agent, or it is not known who."""
    at = models.DateTimeField()
    task_version = models.DateTimeField(null=True, blank=True)
    """When the task was changed whose text this is; None for a message."""
    text = models.TextField()

    class Meta(TeamModel.Meta):
        db_table = "search_documents"
        ordering = ("-at", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=("task",), condition=models.Q(kind=DocumentKind.TASK.value), name="one_document_per_task"
            ),
        )
        indexes = (models.Index(fields=("session", "seq"), name="search_document_by_seq"),)

    def __str__(self) -> str:
        return f"{self.kind} document {self.id}"


class SearchCursor(TeamModel):
    """How far the conversation of a session is indexed. Without it, the session is indexed from its beginning."""

    team_path = "session__task__team"

    session = models.OneToOneField(
        TaskSession, models.CASCADE, primary_key=True, related_name="search_cursor", db_constraint=False
    )
    seq = models.BigIntegerField(default=0)
    """What the log contains up to here is in the index, or left out and counted."""
    indexed_at = models.DateTimeField()
    left_out = models.PositiveIntegerField(default=0)
    """Texts that are not in the index: too expensive to be searched for secrets, or too many."""
    version = models.CharField(max_length=64, blank=True, default="")
    """Of the rules and secrets by which the texts were read; others have to be read again."""

    class Meta(TeamModel.Meta):
        db_table = "search_cursors"

    def __str__(self) -> str:
        return f"search cursor at {self.seq}"


@dataclass(slots=True)
class SessionProgress:
    """What one pass has read of a session."""

    session_id: uuid.UUID
    begin: int | None
    """The cursor when it was read; None: there was none."""
    end: int
    """The cursor when all of this is written."""
    version: str
    left_out: int = 0
    replaced: list[uuid.UUID] = field(default_factory=list)
    """Messages whose documents have become outdated."""
    documents: list[SearchDocument] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """Of each document, as ``folded_text``."""


def write_progress(progress: Sequence[SessionProgress]) -> int:
    """Write what was read of some sessions, in one short transaction; return the number of new documents.

    A session is left out that was deleted meanwhile, or whose cursor another process has moved.
    """
    if not progress:
        return 0
    with transaction.atomic():
        ids = [each.session_id for each in progress]
        existing = set(TaskSession.objects.filter(id__in=ids).values_list("id", flat=True))
        cursors = SearchCursor.objects.select_for_update().in_bulk(ids)
        written = []
        for each in progress:
            cursor = cursors.get(each.session_id)
            if each.session_id in existing and (cursor.seq if cursor else None) == each.begin:
                written.append(each)
        replaced = [message_id for each in written for message_id in each.replaced]
        for start in range(0, len(replaced), _AT_ONCE):
            SearchDocument.objects.filter(message_id__in=replaced[start : start + _AT_ONCE]).delete()
        _insert(
            [document for each in written for document in each.documents],
            [words for each in written for words in each.words],
        )
        removed = _remove_excess([each.session_id for each in written if each.documents])
        now = timezone.now()
        for each in written:
            _save_cursor(cursors.get(each.session_id), each, removed.get(each.session_id, 0), now)
    return sum(len(each.documents) for each in written)


def _save_cursor(cursor: SearchCursor | None, progress: SessionProgress, removed: int, now: datetime) -> None:
    left_out = progress.left_out + removed
    values: dict[str, Any] = {"seq": progress.end, "indexed_at": now, "version": progress.version}
    if cursor is None:
        SearchCursor.objects.create(session_id=progress.session_id, left_out=left_out, **values)
        return
    SearchCursor.objects.filter(session_id=progress.session_id).update(left_out=cursor.left_out + left_out, **values)


def _insert(documents: Sequence[SearchDocument], words: Sequence[str]) -> None:
    if documents:
        SearchDocument.objects.bulk_create(documents, batch_size=_AT_ONCE)
        backends.add_words([document.id for document in documents], words)


def _remove_excess(session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Remove the oldest documents beyond the limit of a session; return how many by session."""
    rows = SearchDocument.objects.filter(session_id__in=session_ids).order_by()
    counts = rows.values("session_id").annotate(count=Count("id")).filter(count__gt=MAX_DOCUMENTS)
    removed = {}
    for session_id, count in counts.values_list("session_id", "count"):
        excess = count - MAX_DOCUMENTS
        oldest = SearchDocument.objects.filter(session_id=session_id).order_by("seq", "id")
        last_seq = oldest.values_list("seq", flat=True)[excess - 1]
        removed[session_id] = SearchDocument.objects.filter(session_id=session_id, seq__lte=last_seq).delete()[0]
    return removed


def write_tasks(documents: Sequence[SearchDocument], words: Sequence[str]) -> None:
    """Replace the documents of some tasks, in one short transaction. One that was deleted meanwhile is left out."""
    with transaction.atomic():
        ids = [document.task_id for document in documents]
        existing = set(Task.objects.filter(id__in=ids).values_list("id", flat=True))
        SearchDocument.objects.filter(kind=DocumentKind.TASK, task_id__in=ids).delete()
        kept = [place for place, document in enumerate(documents) if document.task_id in existing]
        _insert([documents[place] for place in kept], [words[place] for place in kept])


def forget_sessions(session_ids: Collection[uuid.UUID], limit: int) -> bool:
    """Remove the documents of some sessions, at most ``limit`` of them, then their cursors; return if all are gone."""
    with transaction.atomic():
        rows = SearchDocument.objects.filter(session_id__in=session_ids).order_by("id")
        ids = list(rows.values_list("id", flat=True)[:limit])
        SearchDocument.objects.filter(id__in=ids).delete()
        if len(ids) < limit:
            SearchCursor.objects.filter(session_id__in=session_ids).delete()
            return True
    return False
