"""Crash points: named places where a test kills a process to prove that a crash there does no harm."""

from __future__ import annotations

import difflib
import os
import signal
from pathlib import Path
from typing import Final

PROCESSES: Final = {
    "request": ("web",),
    "supervisor": ("supervisor", "recover_sessions"),
    "sweep": ("supervisor", "recover_sessions"),
    "shutdown": ("supervisor",),
    "export": ("supervisor",),
    "workflow": ("supervisor",),
    "queue": ("web",),
    "wait": ("web", "supervisor"),
    "own_turn": ("supervisor", "recover_sessions"),
    "background": ("supervisor", "recover_sessions"),
    "usage": ("supervisor", "recover_sessions"),
    "budget": ("supervisor", "recover_sessions"),
    "schedule": ("worker",),
    "suspension": ("supervisor",),
    "finish_request": ("web",),
    "finish": ("supervisor",),
    "lost": ("hosts", "supervisor"),
    "returned": ("supervisor",),
    "agentctl": ("agentctl",),
}
"""The kinds of process that reach a point, by the first part of its name."""

POINT_NAMES: Final = (
    # requests
    "request.order_written",
    "request.order_committed",
    "request.prompt_written",
    "request.prompt_committed",
    # taking over
    "supervisor.leased",
    "supervisor.attached",
    # a start
    "supervisor.start_claimed",
    "supervisor.launched",
    "supervisor.launch_written",
    "supervisor.agent_prepared",
    "supervisor.agent_started",
    "supervisor.agent_start_written",
    "supervisor.start_failed",
    "supervisor.start_failure_written",
    # a prompt
    "supervisor.prompt_sending",
    "supervisor.prompt_sent",
    "supervisor.steer_sending",
    "supervisor.steer_sent",
    # the journal
    "supervisor.ingest_before_commit",
    "supervisor.ingest_after_commit",
    "supervisor.ingest_acked",
    # intents that do not wait for a turn
    "supervisor.answer_sent",
    "supervisor.cancel_sent",
    "supervisor.setting_sent",
    "supervisor.agent_stopped",
    "supervisor.stop_sent",
    "supervisor.execution_ended",
    "supervisor.stop_written",
    "supervisor.stop_settled",
    # workflows
    "workflow.step_written",
    "workflow.step_committed",
    "workflow.job_asked",
    "workflow.jobs_ended",
    # the queue
    "queue.change_written",
    "queue.change_committed",
    # waits
    "wait.change_written",
    "wait.change_committed",
    # turns that an agent begins
    "own_turn.begun",
    "own_turn.ended",
    "own_turn.end_committed",
    # background work
    "background.reported",
    # usage and budgets
    "usage.turn_counted",
    "budget.hold_written",
    "budget.hold_committed",
    # scheduled runs
    "schedule.run_written",
    "schedule.slot_moved",
    "schedule.run_committed",
    # suspensions
    "suspension.begun",
    "suspension.continued",
    "suspension.committed",
    # merges and pushes
    "finish_request.written",
    "finish_request.committed",
    "finish.prepared",
    "finish.planned",
    "finish.applied",
    "finish.end_written",
    "finish.end_committed",
    # lost hosts
    "lost.declared",
    "lost.unwritten",
    "lost.ended",
    "returned.ended",
    # the sweep
    "sweep.decided",
    "sweep.leftovers_ended",
    "sweep.taken_over",
    "sweep.drained",
    "sweep.row_unwritten",
    "sweep.row_written",
    "sweep.written",
    # the portable record
    "export.lines_written",
    "export.lines_synced",
    "export.snapshot_drafted",
    "export.snapshot_replaced",
    "export.cursor_drafted",
    "export.cursor_replaced",
    # the end of a supervisor
    "shutdown.begun",
    "shutdown.unregistered",
    "shutdown.released",
    # agentctl's start
    "agentctl.lock_taken",
    "agentctl.listening",
    "agentctl.ready_told",
    "agentctl.start_begun",
    "agentctl.agent_spawned",
    "agentctl.token_kept",
    "agentctl.agent_ready",
    "agentctl.launch_remembered",
    # agentctl's turn
    "agentctl.prompt_journaled",
    "agentctl.prompt_accepted",
    "agentctl.prompt_handed_over",
    "agentctl.prompt_delivered",
    "agentctl.turn_ended",
    "agentctl.permission_asked",
    "agentctl.answer_journaled",
    "agentctl.setting_journaled",
    "agentctl.cancel_remembered",
    "agentctl.cancel_asked",
    "agentctl.steer_journaled",
    "agentctl.steer_handed_over",
    "agentctl.steer_settled",
    # agentctl's jobs
    "agentctl.job_prepared",
    "agentctl.job_remembered",
    "agentctl.job_spawned",
    "agentctl.job_ended",
    # agentctl's journal
    "agentctl.journal_written",
    "agentctl.journal_synced",
    "agentctl.segment_added",
    "agentctl.segment_dropped",
    # agentctl's end
    "agentctl.agent_stopped",
    "agentctl.stop_remembered",
    "agentctl.ending",
)
"""Every crash point, in the order of docs/crash-points.md, which describes what a crash there leaves behind."""

_EACH: Final = "each"

_armed_points: list[_ArmedPoint] = []
_subject: list[str] = []


def processes_of(name: str) -> tuple[str, ...]:
    """Return the kinds of process that reach the point ``name``."""
    return PROCESSES[name.partition(".")[0]]


class _ArmedPoint:
    """A point at which this process is to be killed."""

    def __init__(self, spec: str, reached_dir: Path):
        self.name, _, count = spec.partition(":")
        self.each = count == _EACH
        self.countdown = 0 if self.each else _times(spec, count)
        self.reached_dir = reached_dir

    def visit(self, subject: str) -> None:
        """Record that the point was reached, and kill the process if it is time."""
        with (self.reached_dir / f"{self.name}.log").open("a") as log:
            log.write(f"{subject or '-'}\n")
        if self.each:
            self._spring(f"{self.name}.{subject}", subject)
            return
        self.countdown -= 1
        if self.countdown == 0:
            self._spring(self.name, subject)

    def _spring(self, file: str, subject: str) -> None:
        """Create the point's file, synced to disk, and kill this process without cleanup.

        If the file exists, an earlier process was killed there, and this one continues.
        """
        try:
            descriptor = os.open(self.reached_dir / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.write(descriptor, subject.encode())
        os.fsync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)


def check(spec: str) -> None:
    """Raise ValueError for a spec with an unknown name or an invalid N."""
    for one in spec.split(","):
        name, _, count = one.partition(":")
        _check(name)
        if count != _EACH:
            _times(one, count)


def arm(spec: str, reached_dir: str | os.PathLike[str], subject: str = "") -> None:
    """Kill this process at ``spec``: comma-separated points, each ``name``, ``name:N`` or ``name:each``.

    ``name:N`` is the N-th time that this process reaches it, ``name:each`` the first time for each
    session (agentctl, which has one, names it in ``subject``). There a file ``reached_dir/name``
    (``name.<session>``) is created; if it exists already, nothing happens, so that a process that is
    restarted with the same environment survives. Each time the point is reached, the session is appended
    to ``reached_dir/name.log``. Raises ValueError for an unknown name or an invalid N.
    """
    check(spec)
    _armed_points[:] = [_ArmedPoint(one, Path(reached_dir)) for one in spec.split(",")]
    _subject[:] = [subject]


def reached(name: str, session: object = "") -> None:
    """Declare that the process is at the point ``name``, for a session; ValueError for an unknown name."""
    _check(name)
    for trap in _armed_points:
        if trap.name == name:
            trap.visit(str(session) or _subject[0])


def _times(spec: str, count: str) -> int:
    if count and (not count.isascii() or not count.isdigit() or int(count) < 1):
        raise ValueError(f"crash point {spec!r}: {count!r} is not a number of times")
    return int(count or 1)


def _check(name: str) -> None:
    if name not in POINT_NAMES:
        nearest = difflib.get_close_matches(name, POINT_NAMES, n=1, cutoff=0)
        raise ValueError(f"there is no crash point {name!r}; the nearest is {nearest[0]!r}")
