"""The history for a new agent: what it would be built from, and the one that is built and stored.

Building it takes seconds of processor time if an agent wants it to. So no transaction and no request builds it:
``build`` runs in a limited process, the supervisor calls it before it needs the result, and everything else reads the
stored row. A row counts only if its version is that of the present conversation, secrets and rules.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from django.db.models import Case, Max, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Length, Substr
from django.utils.crypto import salted_hmac

from executors_app.models import named_values
from executors_app.wire.launch_tokens import bearer_token
from sessions_app.confined.client import OperationFailed, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.kernel.locking import refuse_in_transaction
from sessions_app.models import Message, MessagePart, PreparedHistory, TaskSession
from sessions_app.recovery.rules.history import RULES_VERSION, SCAN_BUDGET, SCANNED_CHARS, Injection
from sessions_app.recovery.services.assessment import execution_of
from sessions_app.redaction.assigned_values import address_passwords
from sessions_app.rendering.pool import TEXT_POOL

log = logging.getLogger(__name__)

HISTORY_ROLES: Final = ("user", "agent", "tool")
LIMITS: Final = Limits(cpu_seconds=30.0, seconds=120.0, memory=512 << 20)
PAYLOAD_CHARS: Final = 256 * 1024
"""A tool call with more JSON than this is only mentioned."""
_PAGE: Final = 100
_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|auth|credential", re.IGNORECASE)
_MAX_READ: Final = 4 << 20
"""Characters that are read for a history."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """What a history is built from."""

    session_id: uuid.UUID
    team_id: int
    version: str
    total: int
    entries: list[tuple[str, str, str]] = field(repr=False)
    """Newest first, as ``rendering.operations.histories.StoredEntry``."""
    secrets: list[str] = field(repr=False)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the operation ``build_history``."""
        return {"entries": self.entries, "total": self.total, "secrets": self.secrets}


def current_history(session: TaskSession) -> Injection | None:
    """Return the history that a new agent would get now; None if it has to be built first. Two short queries."""
    version = _version_of(session)
    if version is None:
        return Injection("", 0)
    row = PreparedHistory.objects.filter(session=session, version=version).first()
    if row is None:
        return None
    return row.to_injection()


def load_request(session: TaskSession) -> HistoryRequest | None:
    """Return what the history has to be built from; None if the stored one is current."""
    # The version is read before the messages: if one is added meanwhile, the history is built again.
    version = _version_of(session)
    if version is None or PreparedHistory.objects.filter(session=session, version=version).exists():
        return None
    rows = _told_messages(session)
    return HistoryRequest(
        session_id=session.id,
        team_id=session.task.team_id,
        version=version,
        total=rows.count(),
        entries=list(_newest_entries(rows)),
        secrets=sorted(secrets_of(session)),
    )


def build(request: HistoryRequest) -> Injection:
    """Build a history in a limited process. Raises PoolUnavailable, after which it can be tried again.

    Raises RuntimeError in a transaction, because all writers would wait for the process.

    If the texts cost too much, all of them are left out and counted: nothing is passed on that was not searched for
    secrets.
    """
    refuse_in_transaction()
    try:
        built = TEXT_POOL.run("build_history", request.arguments(), owner=f"team:{request.team_id}", limits=LIMITS)
    except (TooExpensive, OperationFailed):
        log.exception("session %s: its history could not be searched for secrets", request.session_id)
        return Injection("", 0, cut=request.total)
    return Injection(**built)


def store(request: HistoryRequest, built: Injection) -> None:
    """Store a history that was built. If the conversation has changed meanwhile, nothing reads it."""
    text, facts = built.text, asdict(built)
    del facts["text"]
    if TaskSession.objects.filter(id=request.session_id).exists():
        PreparedHistory.objects.update_or_create(
            session_id=request.session_id, defaults={"version": request.version, "text": text, "facts": facts}
        )


def _told_messages(session: TaskSession) -> QuerySet[Message]:
    return session.messages.filter(role__in=HISTORY_ROLES)


def _version_of(session: TaskSession) -> str | None:
    """Return what distinguishes this history from every other one of the session; None if there are no messages."""
    newest = session.messages.aggregate(newest=Max("updated_seq"))["newest"]
    if newest is None:
        return None
    about = json.dumps([RULES_VERSION, newest, sorted(secrets_of(session))])
    # A plain digest would let whoever reads the table try guesses at short secrets.
    return salted_hmac("kandev.history", about, algorithm="sha256").hexdigest()


def _newest_entries(rows: QuerySet[Message]) -> Iterator[tuple[str, str, str]]:
    """Yield stored entries, newest first, as far as a history can need them."""
    raw = Cast("payload", TextField())
    newest_first = rows.annotate(raw_length=Length(raw)).order_by("-seq")
    short = When(raw_length__lte=PAYLOAD_CHARS, then=raw)
    newest_first = newest_first.annotate(raw=Case(short, default=Value(""), output_field=TextField()))
    unread, unscanned, begin = _MAX_READ, SCAN_BUDGET, 0
    while unread > 0 and unscanned > 0:
        found = list(newest_first[begin : begin + _PAGE].values_list("id", "role", "raw"))
        texts = _text_beginnings([key for key, role, _ in found if role != "tool"])
        for key, role, payload in found:
            text = texts.get(key, "")
            unread -= len(text) + len(payload)
            unscanned -= min(len(text), SCANNED_CHARS)
            if unread < 0:
                return
            yield role, text, payload
        if len(found) < _PAGE:
            return
        begin += _PAGE


def _text_beginnings(messages: list[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return the beginning of each message's text; the history contains no more of it."""
    first = MessagePart.objects.filter(message_id__in=messages, number=0)
    return dict(first.values_list("message_id", Substr("text", 1, SCANNED_CHARS + 1)))


def secrets_of(session: TaskSession) -> set[str]:
    """Return the secret values of this session's agent, so that they can be redacted. Raises SecretUnreadable."""
    return set(_values_to_hide(session))


def _values_to_hide(session: TaskSession) -> Iterator[str]:
    execution, profile = execution_of(session), session.agent_profile
    if execution is not None:
        bearer = bearer_token(execution.auth_token, execution.state)
        tokens = (execution.resume_token, execution.rejected_resume_token, execution.auth_token, bearer)
        yield from filter(None, tokens)
    # A former secret may still be valid somewhere, and what was written before it was replaced still quotes it.
    for pair in (*named_values(profile), *profile.former_secrets):
        name, value = pair["name"], pair["value"]
        if _SECRET_NAME.search(name):
            yield from (value, value.rsplit(" ", 1)[-1])  # in "Bearer X", X alone is a secret too
        # Whatever it is called, as DATABASE_URL; also as a program passes it on, without the escapes of addresses.
        yield from (value[begin:end] for begin, end in address_passwords(value))
