"""Restarts of the control plane: ordering one, what the last one came to, and the guided first restart."""

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
from django.utils import timezone

from executors_app.agentctl.process import identity
from sessions_app.models import ContinuityReceipt, RecoverySweep, Run, SweepOutcome, Task, TaskSession
from sessions_app.services import attention_filters
from sessions_app.services.board import annotate_needs
from sessions_app.services.catalogue import SECRET_FIELDS
from sessions_app.services.sweeps import SKIPPED, load_results

SERVE_FILE: Final = "serve.json"
ORDER_FILE: Final = "restart-wanted.json"
DONE_FILE: Final = "restarted.json"
KILL_DELAY: Final = 0.7
"""Seconds between an order and the kill, so that whoever ordered is answered."""


@dataclass(frozen=True, slots=True)
class OrderedRestart:
    """The last restart that somebody ordered."""

    by: str
    killed_at: datetime
    killed: Sequence[str]
    """Names of the processes that were killed."""


def can_order_restart(user: Any) -> bool:
    """Whether ``user`` may order a restart here: staff, and this process is one that ``serve`` keeps."""
    return bool(user.is_staff and settings.KANDEV_EMBEDDED and not settings.KANDEV_PUBLIC and _is_run_by_serve())


def _is_run_by_serve() -> bool:
    told = _read(SERVE_FILE)
    try:
        keeper = identity.ProcessIdentity.from_json(told.get("keeper", {}))
    except ValueError:
        return False
    return bool(told.get("loopback")) and keeper.pid == os.getppid() and identity.is_alive(keeper)


def order_restart(user: Any) -> None:
    """Leave the order; the caller has checked ``may_restart``."""
    _write(ORDER_FILE, {"by": user.get_username()})


def is_ordered() -> bool:
    """Whether an order waits to be carried out."""
    return _path(ORDER_FILE).exists()


def last_ordered() -> OrderedRestart | None:
    """The last restart of this kind; None before the first."""
    told = _read(DONE_FILE)
    try:
        return OrderedRestart(
            str(told["by"]), datetime.fromisoformat(told["killed_at"]), [str(one) for one in told["killed"]]
        )
    except (KeyError, TypeError, ValueError):
        return None


# --- for the keeper ---


class RestartOrders:
    """What ``serve`` does about it."""

    def __init__(self, *, loopback: bool) -> None:
        _path(ORDER_FILE).unlink(missing_ok=True)  # of a server that is no more
        _write(SERVE_FILE, {"keeper": identity.identify_self().to_json(), "loopback": loopback})
        self._seen_at: float | None = None

    def due(self, now: float) -> bool:
        """Whether the processes are to be killed at ``now``, in monotonic seconds; until ``done`` is said."""
        if not is_ordered():
            self._seen_at = None
        elif self._seen_at is None:
            self._seen_at = now
        return self._seen_at is not None and now - self._seen_at >= KILL_DELAY

    def done(self, killed: Sequence[str]) -> None:
        """They were killed."""
        by = _read(ORDER_FILE).get("by", "")
        _write(DONE_FILE, {"by": by, "killed_at": timezone.now().isoformat(), "killed": list(killed)})
        _path(ORDER_FILE).unlink(missing_ok=True)
        self._seen_at = None


def _path(name: str) -> Path:
    return Path(settings.KANDEV_DATA_DIR) / name


def _read(name: str) -> dict[str, Any]:
    try:
        told = json.loads(_path(name).read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _write(name: str, told: dict[str, Any]) -> None:
    """Wholly there or not at all, and nobody else's to read."""
    path = _path(name)
    draft = path.with_name(f".{name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(told, stream)
    draft.replace(path)


MAX_NAMED: Final = 8
"""Sessions that are told by name; the rest is counted."""


@dataclass(frozen=True, slots=True)
class LastRestart:
    """The newest sweep of a start of the supervisor."""

    sweep: RecoverySweep
    counts: Mapping[str, int]
    """By ``sweep_results.Result.kind``, without those that nothing came of."""
    needy: list[TaskSession]
    """Those of them that a person has to look at, at most ``NAMED``, with their marks."""
    needy_count: int

    @property
    def total(self) -> int:
        """How many sessions were taken up again, or could not be."""
        return sum(self.counts.values())


def load_last_restart(user: Any) -> LastRestart | None:
    """None before the first restart, and where it concerned none of the user's sessions; five queries at most."""
    sweep = RecoverySweep.objects.filter(trigger="boot").first()
    if sweep is None:
        return None
    rows = SweepOutcome.objects.visible_to(user).filter(sweep=sweep)
    counts = Counter(one.kind for one in load_results(user, [sweep])[sweep.id])
    if not counts:
        return None
    counts.pop(SKIPPED, None)
    needy = TaskSession.objects.filter(
        attention_filters.needs_person(), id__in=rows.values("session"), task__archived_at=None
    )
    shown = annotate_needs(needy.select_related("task", "agent_profile").defer(*SECRET_FIELDS), user)[: MAX_NAMED + 1]
    found = list(shown)
    count = len(found) if len(found) <= MAX_NAMED else needy.count()
    return LastRestart(sweep, counts, found[:MAX_NAMED], count)


DEMO_TASK: Final = "Survive a restart"
"""The title of the demo's task whose agent works long enough."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """How far somebody is."""

    task: Task
    session: TaskSession | None
    """The newest on the task; None: it was not started."""
    works: bool
    """Its agent is in a turn."""
    has_worked: bool
    restarted: bool


def load_first_steps(user: Any) -> FirstSteps | None:
    """None where the control plane cannot be restarted from the pages, and for whoever has seen what comes of it."""
    if not can_order_restart(user):
        return None
    task = Task.objects.visible_to(user).filter(archived_at=None, title=DEMO_TASK).order_by("created_at").first()
    if task is None or _has_finished(user):
        return None
    session = task.sessions.order_by("-created_at").first()
    runs = Run.objects.filter(session=session) if session else Run.objects.none()
    last = last_ordered()
    return FirstSteps(
        task=task,
        session=session,
        works=runs.filter(ended_at=None).exists(),
        has_worked=runs.exists(),
        restarted=last is not None and last.killed_at >= task.created_at,
    )


def _has_finished(user: Any) -> bool:
    return ContinuityReceipt.objects.visible_to(user).filter(kind="reattached").exists() and last_ordered() is not None
