"""A session's conversation as a new agent is told it: from the log, no more of it than fits."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

from django.db.models.functions import Substr

from executors_app.agentctl.places.launch_token import bearer_of
from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.domain.history import SEEN_CHARS, HistoryEntry, Injection, inject, tool_entry
from sessions_app.models import MessagePart, TaskSession
from sessions_app.services.assessment import execution_of

ROLES: Final = ("user", "agent", "tool")
_PAGE: Final = 100
_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|auth|credential", re.IGNORECASE)


def history_of(session: TaskSession) -> Injection:
    """What a new agent of this session would be told now; reads, never writes."""
    total = session.messages.filter(role__in=ROLES).count()
    return inject(_newest_first(session), total, secrets=_secrets_of(session)) if total else Injection("", 0)


def _newest_first(session: TaskSession) -> Iterator[HistoryEntry]:
    rows = session.messages.filter(role__in=ROLES).order_by("-seq")
    for page in count():
        found = list(rows[page * _PAGE : (page + 1) * _PAGE].values_list("id", "role", "payload"))
        heads = _heads_of([key for key, role, _ in found if role != "tool"])
        for key, role, payload in found:
            yield tool_entry(payload) if role == "tool" else HistoryEntry(role, heads.get(key, ""))
        if len(found) < _PAGE:
            return


def _heads_of(messages: list[uuid.UUID]) -> dict[uuid.UUID, str]:
    """The beginning of each message's text: more of it is not told."""
    first = MessagePart.objects.filter(message_id__in=messages, number=0)
    return dict(first.values_list("message_id", Substr("text", 1, SEEN_CHARS + 1)))


def _secrets_of(session: TaskSession) -> set[str]:
    """What is kept encrypted for this session's agent is known for a secret by its value."""
    execution = execution_of(session)
    return {*filter(None, _tokens_of(execution)), *_secrets_of_profile(session.agent_profile)}


def _tokens_of(execution: ExecutorRunning | None) -> tuple[str, ...]:
    if execution is None:
        return ()
    bearer = bearer_of(execution.auth_token, execution.state)
    return (execution.resume_token, execution.rejected_resume_token, execution.auth_token, bearer)


def _secrets_of_profile(profile: AgentProfile) -> Iterator[str]:
    yield from _named_secrets(profile.env)
    for server in profile.mcp_servers:
        for name in ("env", "headers"):
            yield from _named_secrets(server.get(name))


def _named_secrets(values: Any) -> Iterator[str]:
    pairs: Any = values.items() if isinstance(values, Mapping) else ()
    if isinstance(values, list):
        pairs = ((each.get("name"), each.get("value")) for each in values if isinstance(each, dict))
    for name, value in pairs:
        if isinstance(value, str) and _SECRET_NAME.search(str(name)):
            yield from (value, value.rsplit(" ", 1)[-1])  # of "Bearer X", X alone is one too
