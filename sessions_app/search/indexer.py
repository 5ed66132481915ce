"""Fill the index behind the log: read what has changed in some sessions, search it for secrets, write it at once.

A pass reads committed rows only. Secrets are searched for in limited processes, between reading and writing. Each
pass writes one short transaction for all sessions that it has read, because SQLite has one writer at a time.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import DataError, Error, IntegrityError
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery, TextField
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, Substr
from django.utils.crypto import salted_hmac

from executors_app.encryption import SecretUnreadable
from executors_app.models import AgentProfile, named_values
from sessions_app.confined.client import Failure, Outcome, PoolUnavailable
from sessions_app.confined.limits import Limits
from sessions_app.kernel.database_errors import is_cancelled
from sessions_app.kernel.locking import refuse_in_transaction
from sessions_app.models import Message, MessagePart, Prompt, Task, TaskSession
from sessions_app.recovery.services.history import secrets_of
from sessions_app.rendering.pool import TEXT_POOL
from sessions_app.search.models import (
    SearchCursor,
    SearchDocument,
    SessionProgress,
    forget_sessions,
    write_progress,
    write_tasks,
)
from sessions_app.search.rules.documents import MESSAGE_KINDS, READ_LIMIT, RULES_VERSION, DocumentKind
from sessions_app.search.rules.tool_texts import COMMAND_LIMIT, tool_text
from sessions_app.stream.rules.tool_calls import COMMAND_FIELDS

log = logging.getLogger(__name__)

SESSIONS_PER_PASS: Final = 50
MESSAGES_PER_PASS: Final = 200
"""Messages that one pass reads, and documents that its transaction writes at most."""
CHARACTERS_PER_PASS: Final = 256 * 1024
"""After which a pass reads no more messages: SQLite reads each character while it holds the lock of its writer."""
ALONE_SECONDS: Final = 20.0
"""After which a pass tries no other session or task by itself: each may wait for a process that does not answer."""
FORGOTTEN_PER_PASS: Final = 500
RETRY_AFTER: Final = 60.0
"""Seconds until a session or task is read again that could not be indexed; doubled with each failure in a row."""
MAX_RETRY_AFTER: Final = 600.0
MAX_ATTEMPTS: Final = 3
"""Failures in a row after which messages are read one by one, and what cannot be indexed is left out."""
LIMITS: Final = Limits(cpu_seconds=10.0, seconds=30.0, memory=512 << 20)
"""For all texts of a team that one pass searches for secrets."""
TEXT_CPU_SECONDS: Final = 0.5
"""For one of these texts."""


@dataclass(slots=True)
class _Text:
    """A text to be indexed, as it was read."""

    text: str
    secrets: Sequence[str]
    document: SearchDocument
    team_id: int
    progress: SessionProgress | None = None
    known_text: str | None = None
    """What the index has of it; None: nothing."""


@dataclass(slots=True)
class _Prepared:
    """The result of searching a text for secrets; None if that is too expensive."""

    text: str | None
    words: str = ""


@dataclass(slots=True)
class _Budget:
    """What one pass may still read."""

    messages: int = field(default_factory=lambda: MESSAGES_PER_PASS)
    characters: int = field(default_factory=lambda: CHARACTERS_PER_PASS)

    @property
    def is_used_up(self) -> bool:
        return self.messages <= 0 or self.characters <= 0


@dataclass(slots=True)
class _Failures:
    """Failures of sessions, or of tasks, since they were indexed last. A restart forgets them."""

    _in_a_row: dict[uuid.UUID, int] = field(default_factory=dict)
    _retry_at: dict[uuid.UUID, float] = field(default_factory=dict)
    """When to try again (monotonic clock)."""

    def waiting(self) -> set[uuid.UUID]:
        """Return what is not tried again yet."""
        now = time.monotonic()
        return {key for key, at in self._retry_at.items() if at > now}

    def has_failed(self, key: uuid.UUID) -> bool:
        return key in self._in_a_row

    def is_given_up(self, key: uuid.UUID) -> bool:
        return self._in_a_row.get(key, 0) >= MAX_ATTEMPTS

    def record(self, key: uuid.UUID) -> None:
        count = self._in_a_row.get(key, 0) + 1
        self._in_a_row[key] = count
        self._retry_at[key] = time.monotonic() + min(RETRY_AFTER * 2 ** min(count - 1, 10), MAX_RETRY_AFTER)

    def forget(self, key: uuid.UUID) -> None:
        self._in_a_row.pop(key, None)
        self._retry_at.pop(key, None)


@dataclass(slots=True)
class Indexer:
    """Fills the index; used on one thread.

    A session or task that cannot be indexed costs no other one its place in the index: when a pass fails, each of its
    sessions is indexed by itself. An error of the database that concerns all of them is raised.
    """

    _sessions: _Failures = field(default_factory=_Failures)
    _tasks: _Failures = field(default_factory=_Failures)

    def index_sessions(self) -> bool:
        """Index what is new in some sessions; return whether there may be more."""
        refuse_in_transaction()
        sessions = list(sessions_behind().exclude(id__in=self._sessions.waiting())[:SESSIONS_PER_PASS])
        alone = [session for session in sessions if self._sessions.has_failed(session.id)]
        together = [session for session in sessions if not self._sessions.has_failed(session.id)]
        budget = _Budget()
        try:
            _index(together, budget)
        except Exception as error:
            if _concerns_all(error):
                raise
            alone, budget = sessions, _Budget()
        until = time.monotonic() + ALONE_SECONDS
        for session in alone:
            if budget.is_used_up:
                break
            self._index_alone(session, budget)
            if time.monotonic() > until:
                break
        return bool(alone) or budget.is_used_up or len(sessions) == SESSIONS_PER_PASS

    def _index_alone(self, session: TaskSession, budget: _Budget) -> None:
        """Index what is new in a session that may fail; one message only if it has failed too often."""
        is_given_up = self._sessions.is_given_up(session.id)
        try:
            is_complete = _index([session], _Budget(messages=1) if is_given_up else budget)
        except Exception as error:
            if _concerns_all(error):
                raise
            if isinstance(error, SecretUnreadable):
                log.warning("session %s: its secrets cannot be read, so it is not indexed for the search", session.id)
            else:
                log.exception("session %s: it cannot be indexed for the search", session.id)
            self._sessions.record(session.id)
            if is_given_up and not _may_pass(error):
                _leave_out_next(session)
                self._sessions.forget(session.id)
        else:
            if is_complete or not is_given_up:
                self._sessions.forget(session.id)

    def index_tasks(self) -> bool:
        """Index tasks that are new or have changed; return whether there may be more."""
        refuse_in_transaction()
        tasks = list(_changed_tasks().exclude(id__in=self._tasks.waiting())[:MESSAGES_PER_PASS])
        try:
            _index_tasks(tasks)
        except Exception as error:
            if _concerns_all(error):
                raise
            until = time.monotonic() + ALONE_SECONDS
            for task in tasks:
                self._index_task_alone(task)
                if time.monotonic() > until:
                    return True
        return len(tasks) == MESSAGES_PER_PASS

    def _index_task_alone(self, task: Task) -> None:
        try:
            _index_tasks([task])
        except Exception as error:
            if _concerns_all(error):
                raise
            log.exception("task %s: it cannot be indexed for the search", task.id)
            self._tasks.record(task.id)
            if self._tasks.is_given_up(task.id) and not _may_pass(error):
                log.error("task %s is left out of the index of the search until it is changed", task.id)
                write_tasks([_task_document(task)], [""])
                self._tasks.forget(task.id)
        else:
            self._tasks.forget(task.id)

    def forget_outdated(self) -> bool:
        """Remove texts from the index that other rules and secrets were applied to; return whether there were any.

        They are read again by the next passes. What was indexed of sessions that are gone is removed, too: releases
        without an index delete sessions without it.
        """
        lost_tasks = SearchDocument.objects.filter(~Exists(Task.objects.filter(id=OuterRef("task_id"))))
        ids = list(lost_tasks.filter(kind=DocumentKind.TASK).values_list("id", flat=True)[:FORGOTTEN_PER_PASS])
        if ids:
            SearchDocument.objects.filter(id__in=ids).delete()
        gone = SearchCursor.objects.filter(~Exists(TaskSession.objects.filter(id=OuterRef("session_id"))))
        outdated = list(gone.values_list("session_id", flat=True)[:SESSIONS_PER_PASS])
        for profile in AgentProfile.objects.all():
            version = _version_of(profile)
            if version is not None:
                cursors = SearchCursor.objects.filter(session__agent_profile=profile).exclude(version__in=("", version))
                outdated += cursors.values_list("session_id", flat=True)[:SESSIONS_PER_PASS]
        for session_id in outdated:
            if not forget_sessions([session_id], FORGOTTEN_PER_PASS):
                break
        return bool(outdated)


def _concerns_all(error: Exception) -> bool:
    """Whether an error is the database's own, such as a lost connection, and not due to what is written."""
    return isinstance(error, Error) and not isinstance(error, DataError | IntegrityError) and not is_cancelled(error)


def _may_pass(error: Exception) -> bool:
    """Whether an error may be due to the machine or the keys, so that no text is left out for it."""
    return isinstance(error, PoolUnavailable | SecretUnreadable | OSError | MemoryError) or is_cancelled(error)


def _index(sessions: Sequence[TaskSession], budget: _Budget) -> bool:
    """Index what is new in some sessions, within the budget; return whether that is everything."""
    texts, progress = [], []
    for session in sessions:
        if budget.is_used_up:
            break
        found, read = _read_session(session, budget)
        texts += read
        progress.append(found)
    _prepare(texts)
    write_progress(progress)
    ends = {each.session_id: each.end for each in progress}
    return all(ends.get(session.id) == session.last_seq for session in sessions)


def _leave_out_next(session: TaskSession) -> None:
    """Move the cursor of a session over the next message, which cannot be indexed, and count it."""
    cursor = getattr(session, "search_cursor", None)
    begin = cursor.seq if cursor else None
    progress = SessionProgress(session.id, begin, end=session.last_seq, version=cursor.version if cursor else "")
    message = _finished_messages_after(session, begin or 0).values_list("id", "seq", "updated_seq").first()
    if message is not None:
        message_id, seq, progress.end = message
        progress.left_out = 1
        progress.replaced.append(message_id)
        log.error("session %s: its message %s is left out of the index of the search", session.id, seq)
    write_progress([progress])


def _index_tasks(tasks: Sequence[Task]) -> None:
    texts = []
    for task in tasks:
        content = f"{task.title}\n{task.beginning}"  # type: ignore[attr-defined]
        texts.append(_Text(content, (), _task_document(task), task.team_id))
    documents, words = [], []
    for text, prepared in zip(texts, _search(texts), strict=True):
        text.document.text = prepared.text or ""
        documents.append(text.document)
        words.append(prepared.words)
    if documents:
        write_tasks(documents, words)


def _task_document(task: Task) -> SearchDocument:
    return SearchDocument(
        kind=DocumentKind.TASK,
        task_id=task.id,
        author_id=task.created_by_id,
        at=task.created_at,
        task_version=task.updated_at,
    )


def sessions_behind() -> QuerySet[TaskSession]:
    """Return the sessions whose log has more than the index; those first that were indexed longest ago."""
    indexed = Coalesce(F("search_cursor__seq"), 0)
    rows = TaskSession.objects.annotate(indexed_seq=indexed).filter(last_seq__gt=F("indexed_seq"))
    oldest_first = F("search_cursor__indexed_at").asc(nulls_first=True)
    return rows.select_related("task", "agent_profile", "search_cursor").order_by(oldest_first, "id")


def _read_session(session: TaskSession, budget: _Budget) -> tuple[SessionProgress, list[_Text]]:
    """Read what follows the cursor of a session, within the budget. Raises SecretUnreadable."""
    cursor = getattr(session, "search_cursor", None)
    begin = cursor.seq if cursor else None
    version = cursor.version if cursor else ""
    # The end of the log was read before the messages: what is added meanwhile is read by the next pass.
    progress = SessionProgress(session.id, begin, end=session.last_seq, version=version)
    rows = _messages_after(session, begin or 0)[: budget.messages]
    messages = list(rows)
    if not messages:
        return progress, []
    secrets = sorted(secrets_of(session))
    progress.version = _version_of(session.agent_profile) or ""
    parts = MessagePart.objects.filter(message__in=[each.id for each in messages], number=0)
    beginnings = dict(parts.values_list("message_id", Substr("text", 1, READ_LIMIT)))
    known = dict(SearchDocument.objects.filter(message__in=messages).values_list("message_id", "text"))
    authors = _authors_of(session, messages)
    texts = []
    for message in messages:
        text = _text_of(message, beginnings.get(message.id, ""))
        budget.messages -= 1
        budget.characters -= len(text)
        document = SearchDocument(
            kind=message.role,
            task_id=session.task_id,
            session_id=session.id,
            message_id=message.id,
            seq=message.seq,
            author_id=authors.get(message.key) if message.role == DocumentKind.USER else None,
            at=message.created_at,
        )
        texts.append(_Text(text, secrets, document, session.task.team_id, progress, known.get(message.id)))
        if budget.is_used_up:
            progress.end = message.updated_seq
            break
    return progress, texts


def _messages_after(session: TaskSession, seq: int) -> QuerySet[Message]:
    """Return the messages that have changed after ``seq``, in this order, without payloads.

    A text that still grows is indexed when it is complete: its end is a change, too.
    """
    payload_title = KeyTextTransform("title", "payload")
    raw_input = KeyTransform("raw_input", "payload")
    command = Coalesce(*(KeyTextTransform(name, raw_input) for name in COMMAND_FIELDS))
    return (
        _finished_messages_after(session, seq)
        .defer("payload")
        .annotate(
            title=Substr(Cast(payload_title, TextField()), 1, COMMAND_LIMIT),
            kind=Substr(Cast(KeyTextTransform("tool_kind", "payload"), TextField()), 1, COMMAND_LIMIT),
            command=Substr(Cast(command, TextField()), 1, COMMAND_LIMIT),
            input=Substr(Cast(KeyTextTransform("raw_input", "payload"), TextField()), 1, COMMAND_LIMIT),
        )
    )


def _finished_messages_after(session: TaskSession, seq: int) -> QuerySet[Message]:
    rows = session.messages.filter(updated_seq__gt=seq, role__in=MESSAGE_KINDS)
    return rows.filter(Q(complete=True) | Q(role=DocumentKind.TOOL)).order_by("updated_seq", "seq")


def _text_of(message: Any, beginning: str) -> str:
    if message.role != DocumentKind.TOOL:
        return beginning
    return tool_text(message.title or "", message.kind or "", message.command or "", message.input or "")


def _authors_of(session: TaskSession, messages: Sequence[Message]) -> dict[str, int | None]:
    """Return who has queued the prompts among some messages, by their key; one query, or none."""
    keys = [message.key for message in messages if message.role == DocumentKind.USER]
    if not keys:
        return {}
    return dict(Prompt.objects.filter(session=session, message_id__in=keys).values_list("message_id", "by_id"))


def _prepare(texts: Sequence[_Text]) -> None:
    """Search texts for secrets, and add what is new to the progress of their sessions."""
    for text, prepared in zip(texts, _search(texts), strict=True):
        progress = text.progress
        if progress is None:
            continue
        if prepared.text is None:
            progress.left_out += 1
        if prepared.text == text.known_text:
            continue
        if text.known_text is not None and text.document.message_id is not None:
            progress.replaced.append(text.document.message_id)
        if prepared.text:
            text.document.text = prepared.text
            progress.documents.append(text.document)
            progress.words.append(prepared.words)


def _search(texts: Sequence[_Text]) -> list[_Prepared]:
    """Search texts for secrets in limited processes, in their order. Raises PoolUnavailable to try all again."""
    by_team: dict[int, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        by_team[text.team_id].append(place)
    results: dict[int, _Prepared] = {}
    for team_id, places in by_team.items():
        batch = [{"text": texts[place].text, "secrets": list(texts[place].secrets)} for place in places]
        results |= zip(places, _search_of_team(team_id, batch), strict=True)
    return [results[place] for place in range(len(texts))]


def _search_of_team(team_id: int, batch: Sequence[Mapping[str, Any]]) -> Iterator[_Prepared]:
    for arguments, first in zip(batch, _run(team_id, batch), strict=True):
        outcome = first
        if outcome.failure is Failure.NOT_REACHED:
            # Others may have used up the time of all. Alone, a text that still does not end is too expensive.
            (outcome,) = _run(team_id, [arguments])
        if outcome.failure is Failure.BROKEN:
            log.error("A text could not be prepared for the search: %s", outcome.traceback)
        if outcome.result is None:
            yield _Prepared(None)
        else:
            yield _Prepared(outcome.result["text"], outcome.result["words"])


def _run(team_id: int, batch: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    owner = f"search:{team_id}"
    return TEXT_POOL.run_batch("searchable_text", batch, owner=owner, limits=LIMITS, item_cpu_seconds=TEXT_CPU_SECONDS)


def _changed_tasks() -> QuerySet[Task]:
    documents = SearchDocument.objects.filter(task=OuterRef("pk"), kind=DocumentKind.TASK).order_by()
    indexed = Subquery(documents.values("task_version")[:1])
    rows = Task.objects.annotate(indexed_version=indexed, beginning=Substr("description", 1, READ_LIMIT))
    changed = Q(indexed_version=None) | ~Q(indexed_version=F("updated_at"))
    return rows.filter(changed).defer("description").order_by("id")


def _version_of(profile: AgentProfile) -> str | None:
    """Return what distinguishes these rules and secrets from others; None if the secrets cannot be read."""
    try:
        pairs = [*named_values(profile), *profile.former_secrets]
    except SecretUnreadable:
        return None
    values = sorted({pair["value"] for pair in pairs})
    # A plain digest would let whoever reads the table try guesses at short secrets.
    return salted_hmac("kandev.search", json.dumps([RULES_VERSION, values]), algorithm="sha256").hexdigest()
