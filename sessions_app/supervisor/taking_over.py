"""Taking executions over, many at a time: the lease, and with it all that streaming the journal needs."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from django.db import transaction
from django.db.models import F

from executors_app.domain import ExecutionFacts
from executors_app.models import ExecutorRunning
from sessions_app.models import Lease
from sessions_app.supervisor import leases

_ELSEWHERE = {
    "repository_path": "session__task__repository__path",
    "base_branch": "session__task__base_branch",
    "config": "executor__config",
}
"""What of an execution's facts stands in other rows."""
_FACTS = [each.name for each in fields(ExecutionFacts)]
_COLUMNS = [_ELSEWHERE.get(name, name) for name in _FACTS]
_CURSOR = ("journal_epoch", "journal_seq", "session__error_code", "supports_workspace_only")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A session whose execution is to be taken over."""

    session_id: uuid.UUID
    reported: int
    """The generation that its agentctl has seen."""
    workspace_only: bool | None = None
    """Whether its agentctl can serve the workspace without an agent; None: it has not told."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An execution that is ours."""

    facts: ExecutionFacts
    lease: Lease
    epoch: str
    """Of the journal that the log has, up to ``seq``."""
    seq: int
    error_code: str
    """Of the session."""


def take_over(me: str, wanted: Sequence[Wanted]) -> list[Taken | None]:
    """Lease the present execution of each session, in one transaction and a constant number of queries.

    None for what another supervisor holds or should, and where there is no agentctl. Raises OperationalError.
    """
    reported = {one.session_id: one.reported for one in wanted}
    with transaction.atomic():
        held = leases.acquire_all({key: reported[session_id] for key, session_id in _present(reported)}, me)
        rows = ExecutorRunning.objects.filter(id__in=held).values_list("id", "session_id", *_CURSOR, *_COLUMNS)
        probed = {one.session_id: one.workspace_only for one in wanted}
        taken, differs = {}, defaultdict(list)
        for key, session_id, epoch, seq, error_code, known, *values in rows:
            taken[session_id] = Taken(_facts(values), held[key], epoch, seq, error_code)
            if (told := probed[session_id]) not in (None, known):
                differs[told].append(key)
        for told, ids in differs.items():
            ExecutorRunning.objects.filter(id__in=ids).update(supports_workspace_only=told)
    return [taken.get(one.session_id) for one in wanted]


def _present(sessions: Collection[uuid.UUID]) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Execution and session of each that has an agentctl."""
    rows = ExecutorRunning.objects.filter(session_id__in=sessions, session__agent_execution_id=F("id"))
    return list(rows.exclude(agentctl_url="").values_list("id", "session_id"))


def _facts(values: Sequence[Any]) -> ExecutionFacts:
    """As ``ExecutorRunning.facts``; a token that cannot be decrypted is none."""
    known: dict[str, Any] = dict(zip(_FACTS, values, strict=True))
    ids = {name: str(known[name]) for name in ("id", "session_id", "task_id")}
    token = known["auth_token"] if isinstance(known["auth_token"], str) else ""
    beside = {"repository_path": known["repository_path"] or "", "config": known["config"] or {}}
    return ExecutionFacts(**{**known, **ids, **beside, "auth_token": token})
