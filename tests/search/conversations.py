"""Messages for tests of the search, written as ingest writes them: with a number of the session's log."""

from __future__ import annotations

from typing import Any

from django.db.models import F
from django.utils import timezone

from sessions_app.models import Message, MessagePart, TaskSession
from sessions_app.search.indexer import Indexer


def say(session: TaskSession, role: str, text: str, **values: Any) -> Message:
    """Add a message at the end of a session's conversation."""
    TaskSession.objects.filter(id=session.id).update(last_seq=F("last_seq") + 1)
    seq = TaskSession.objects.get(id=session.id).last_seq
    message = Message.objects.create(
        session=session, role=role, seq=seq, updated_seq=seq, created_at=timezone.now(), **values
    )
    if text:
        MessagePart.objects.create(message=message, number=0, text=text)
    return message


def change(message: Message, text: str = "", **values: Any) -> None:
    """Append to a message, as a later line of the journal does."""
    TaskSession.objects.filter(id=message.session_id).update(last_seq=F("last_seq") + 1)
    seq = TaskSession.objects.get(id=message.session_id).last_seq
    Message.objects.filter(id=message.id).update(updated_seq=seq, **values)
    part = MessagePart.objects.filter(message=message).first()
    if part is not None:
        MessagePart.objects.filter(id=part.id).update(text=part.text + text)


def index_all() -> None:
    """Index everything that is in the log."""
    indexer = Indexer()
    while indexer.index_sessions() or indexer.index_tasks() or indexer.forget_outdated():
        pass
