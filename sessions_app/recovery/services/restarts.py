"""Restarts of the control plane: requesting one, the result of the last one, and the guided first restart."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from executors_app.machine.process import identity
from sessions_app.attention.services import inbox
from sessions_app.board.services.session_needs import SessionNeeds, load_needs
from sessions_app.kernel.rules.states import DesiredState, SessionState, TaskState
from sessions_app.models import ContinuityReceipt, RecoverySweep, SweepOutcome, Task, TaskSession, Turn
from sessions_app.recovery.rules.recovery import SKIPPED, AgentAction
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.recovery.services.sweeps import load_results
from sessions_app.sessions.services.queries import SECRET_FIELDS

SERVE_FILE: Final = "serve.json"
ORDER_FILE: Final = "restart-wanted.json"
DONE_FILE: Final = "restarted.json"
KILL_DELAY: Final = 0.7
"""Seconds between a request and the kill, so that the request gets its response."""


@dataclass(frozen=True, slots=True)
class OrderedRestart:
    """The last restart that a user requested."""

    by: str
    killed_at: datetime
    killed: Sequence[str]
    """Names of the processes that were killed."""


def can_order_restart(user: User) -> bool:
    """Return whether the user may restart: staff, on a server that ``serve`` runs on loopback."""
    return bool(user.is_staff and settings.KANDEV_EMBEDDED and not settings.KANDEV_PUBLIC and _is_run_by_serve())


def _is_run_by_serve() -> bool:
    stored = _read(SERVE_FILE)
    try:
        keeper = identity.ProcessIdentity.from_json(stored.get("keeper", {}))
    except ValueError:
        return False
    return bool(stored.get("loopback")) and keeper.pid == os.getppid() and identity.is_alive(keeper)


def order_restart(user: User) -> None:
    """Store a restart request; the caller has checked ``can_order_restart``."""
    _write(ORDER_FILE, {"by": user.get_username()})


def is_ordered() -> bool:
    """Return whether a restart request is pending."""
    return _path(ORDER_FILE).exists()


def last_ordered() -> OrderedRestart | None:
    """Return the last requested restart; None before the first."""
    stored = _read(DONE_FILE)
    try:
        return OrderedRestart(
            str(stored["by"]), datetime.fromisoformat(stored["killed_at"]), [str(name) for name in stored["killed"]]
        )
    except (KeyError, TypeError, ValueError):
        return None


# --- for ``serve``, which keeps the other processes running ---


class RestartOrders:
    """For ``serve``: finds restart requests and records that they were carried out."""

    def __init__(self, *, loopback: bool) -> None:
        _path(ORDER_FILE).unlink(missing_ok=True)  # left by an earlier server
        _write(SERVE_FILE, {"keeper": identity.identify_self().to_json(), "loopback": loopback})
        self._seen_at: float | None = None

    def due(self, now: float) -> bool:
        """Return whether to kill the processes at ``now`` (monotonic seconds); True until ``done`` is called."""
        if not is_ordered():
            self._seen_at = None
        elif self._seen_at is None:
            self._seen_at = now
        return self._seen_at is not None and now - self._seen_at >= KILL_DELAY

    def done(self, killed: Sequence[str]) -> None:
        """Record that the processes were killed."""
        by = _read(ORDER_FILE).get("by", "")
        # The result first: a request that a kill leaves behind is deleted at the next start of ``serve``.
        _write(DONE_FILE, {"by": by, "killed_at": timezone.now().isoformat(), "killed": list(killed)})
        _path(ORDER_FILE).unlink(missing_ok=True)
        self._seen_at = None


def _path(name: str) -> Path:
    return Path(settings.KANDEV_DATA_DIR) / name


def _read(name: str) -> dict[str, Any]:
    try:
        stored = json.loads(_path(name).read_text())
    except (OSError, ValueError):
        return {}
    if isinstance(stored, dict):
        return stored
    return {}


def _write(name: str, document: dict[str, Any]) -> None:
    """Write a file atomically, readable by our user only."""
    path = _path(name)
    temporary = path.with_name(f".{name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(document, stream)
    temporary.replace(path)


MAX_NAMED: Final = 8
"""Sessions that are listed; the rest are only counted."""


@dataclass(frozen=True, slots=True)
class LastRestart:
    """The newest sweep that a supervisor made at its start."""

    sweep: RecoverySweep
    counts: Mapping[str, int]
    """Number of sessions by ``RowResult.kind``, without skipped ones."""
    needy: list[tuple[TaskSession, SessionNeeds]]
    """The sessions that need a person, at most ``MAX_NAMED``, with why."""
    needy_count: int

    @property
    def total(self) -> int:
        """Number of sessions that were recovered or could not be."""
        return sum(self.counts.values())


def load_last_restart(user: User) -> LastRestart | None:
    """Return the last restart; None if there was none that concerned the user's sessions. At most six queries."""
    sweep = RecoverySweep.objects.filter(trigger="boot").first()
    if sweep is None:
        return None
    rows = SweepOutcome.objects.visible_to(user).filter(sweep=sweep)
    counts = Counter(result.kind for result in load_results(user, [sweep])[sweep.id])
    if not counts:
        return None
    counts.pop(SKIPPED, None)
    needy = TaskSession.objects.filter(inbox.needs_person(), id__in=rows.values("session"), task__archived_at=None)
    found = list(needy.select_related("task", "agent_profile").defer(*SECRET_FIELDS)[: MAX_NAMED + 1])
    count = len(found) if len(found) <= MAX_NAMED else needy.count()
    needs = load_needs([session.id for session in found[:MAX_NAMED]], user)
    named = [(session, needs[session.id]) for session in found if session.id in needs]
    return LastRestart(sweep, counts, named, count)


DEMO_TASK: Final = "Survive a restart"
"""Title of the demo task whose agent works long enough for a restart."""


_GOES_ON: Final[tuple[AgentAction, ...]] = ("reattach", "resume")
_SURVIVED: Final = (ReceiptKind.REATTACHED, ReceiptKind.RESUMED, ReceiptKind.LOADED, ReceiptKind.INJECTED)


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """A user's progress in the guided first restart."""

    task: Task
    session: TaskSession | None
    """The newest session of the task; None: not started."""
    works: bool
    """Whether its agent is in a turn."""
    has_worked: bool
    failed: bool
    """Whether its agent could not start."""
    is_over: bool
    """Whether it takes no prompt any more, or was stopped before it worked, so that another one is needed."""
    restarted: bool
    """Whether Kandev was restarted since the session began."""
    survived: bool
    """Whether an agent of the task was reconnected or resumed after a restart."""


def load_first_steps(user: User, *, again: bool = False) -> FirstSteps | None:
    """Return the user's progress; None if restarts are not possible here, or the task is gone or over.

    None also once the user has finished, unless they want to see the steps ``again``.
    """
    if not can_order_restart(user):
        return None
    open_tasks = Task.objects.visible_to(user).filter(archived_at=None, title=DEMO_TASK)
    # A task that is done or cancelled offers no start: its steps could never be completed.
    task = open_tasks.exclude(state__in=(TaskState.DONE, TaskState.CANCELLED)).order_by("created_at").first()
    if task is None:
        return None
    last = last_ordered()
    reattached = ContinuityReceipt.objects.visible_to(user).filter(kind=ReceiptKind.REATTACHED)
    survived = reattached.filter(session__task=task).exists() or _has_been_recovered(task)
    if not again and (survived or (last is not None and reattached.exists())):
        return None
    session = task.sessions.order_by("-created_at").first()
    runs = Turn.objects.filter(session=session) if session else Turn.objects.none()
    has_worked = runs.exists()
    return FirstSteps(
        task=task,
        session=session,
        works=runs.filter(ended_at=None).exists(),
        has_worked=has_worked,
        failed=session is not None and session.state in (SessionState.ERROR, SessionState.FAILED),
        is_over=session is not None and _is_over(session, has_worked=has_worked),
        restarted=session is not None and last is not None and last.killed_at >= session.created_at,
        survived=survived,
    )


def _is_over(session: TaskSession, *, has_worked: bool) -> bool:
    was_stopped = session.desired_state == DesiredState.STOPPED and not has_worked
    return was_stopped or session.state in (SessionState.COMPLETED, SessionState.CANCELLED)


def _has_been_recovered(task: Task) -> bool:
    """Return whether a session of the task went on after Kandev was started again, however it had ended.

    The process may have been ended by hand, or with the machine, and the agent with it.
    """
    rows = SweepOutcome.objects.filter(session__task=task, sweep__trigger="boot", agent_action__in=_GOES_ON)
    since = {"session__receipts__created_at__gte": F("sweep__started_at")}
    return rows.filter(session__receipts__kind__in=_SURVIVED, **since).exists()
