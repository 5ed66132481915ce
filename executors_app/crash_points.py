"""Crash points: named places where a test kills a process to prove that a crash there does no harm."""

from __future__ import annotations

import difflib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One named place between two steps."""

    name: str
    between: str
    """What has been done, a bar, and what has not."""
    next: str
    """What happens next without any intervention."""

    @property
    def steps(self) -> tuple[str, str]:
        """What has been done, and what has not."""
        done, _, undone = self.between.partition(" | ")
        return done, undone

    @property
    def processes(self) -> tuple[str, ...]:
        """The kinds of process that reach the point."""
        return PROCESSES[self.name.partition(".")[0]]


PROCESSES: Final = {
    "request": ("web",),
    "supervisor": ("supervisor", "recover_sessions"),
    "sweep": ("supervisor", "recover_sessions"),
    "shutdown": ("supervisor",),
    "export": ("supervisor",),
    "workflow": ("supervisor",),
    "agentctl": ("agentctl",),
}
"""By the first part of a point's name. The background worker takes no part in a session."""

_ASKED = "Nothing was recorded: the same request id counts as a new request."
_FOUND = "The supervisor finds the row when it next polls; repeating the request finds the row, too."
_GO_ON = "The intent is still open: the next supervisor continues it."
_REATTACH = "The sweep finds the execution alive and reattaches."
_AGAIN = "The command is sent again; agentctl recognises it and gives the same answer."
_DEAD = "The sweep finds it dead, ends leftover processes, reads its journal and restarts it."
_BY_SEQ = "The exporter continues after the last complete line of the record."
_NO_JOB = "Nothing was run: the same job id counts as a new job."
_JOB_NOT_BEGUN = "It never runs: its result reports that agentctl ended, without an exit code."
_JOB_ENDED = "Its guard ends it and records the result; the next agentctl reports that and runs nothing again."
_NO_AGENT = "The start is retried after a delay; a half-started agent ended with its guard."
_STEP = "The next supervisor finds the step in the database and continues."
_SAME_JOB = "It is requested again by its id and does not run a second time."

CRASH_POINTS: Final = (
    # requests
    CrashPoint("request.order_written", "an intent is written | its transaction is not committed", _ASKED),
    CrashPoint(
        "request.order_committed",
        "an intent is committed | no supervisor is notified, the caller has no answer",
        _FOUND,
    ),
    CrashPoint("request.prompt_written", "a prompt is written | its transaction is not committed", _ASKED),
    CrashPoint(
        "request.prompt_committed",
        "a prompt is committed | no supervisor is notified, the caller has no answer",
        _FOUND,
    ),
    # taking over
    CrashPoint("supervisor.leased", "the lease is taken | the generation was not sent to agentctl", _REATTACH),
    CrashPoint("supervisor.attached", "agentctl has confirmed the generation | no command was sent", _REATTACH),
    # a start
    CrashPoint("supervisor.start_claimed", "a start is claimed and counted | nothing is launched", _GO_ON),
    CrashPoint("supervisor.launched", "agentctl is running | the row does not name it", "It is found again by its id."),
    CrashPoint("supervisor.launch_written", "the row names agentctl | no supervisor is attached", _GO_ON),
    CrashPoint(
        "supervisor.agent_prepared", "the strategy is written | agentctl was not asked to start the agent", _GO_ON
    ),
    CrashPoint("supervisor.agent_started", "the agent is running | token, receipt and state are not written", _AGAIN),
    CrashPoint("supervisor.agent_start_written", "the start is written | no prompt was sent", _REATTACH),
    CrashPoint("supervisor.start_failed", "a start has failed | the failure is not written", _AGAIN),
    CrashPoint(
        "supervisor.start_failure_written",
        "the failure is written | no retry is scheduled",
        "The loop retries when the delay has elapsed.",
    ),
    # a prompt
    CrashPoint(
        "supervisor.prompt_sending",
        "the prompt is *sending* | the command has not been sent",
        "It is sent to the same journal epoch; if that is gone, the prompt is held.",
    ),
    CrashPoint(
        "supervisor.prompt_sent", "agentctl has accepted the prompt | the journal's line is not read", _REATTACH
    ),
    # the journal
    CrashPoint(
        "supervisor.ingest_before_commit",
        "a batch of lines is written | its transaction is not committed",
        "The cursor is before the batch, which is read again.",
    ),
    CrashPoint(
        "supervisor.ingest_after_commit",
        "a batch is committed | it is not acknowledged to agentctl",
        "The cursor is after the batch, which is not read again.",
    ),
    CrashPoint("supervisor.ingest_acked", "a batch is acknowledged | the next prompt was not sent", _REATTACH),
    # intents that do not wait for a turn
    CrashPoint("supervisor.answer_sent", "agentctl has the answer | the intent is open", _AGAIN),
    CrashPoint("supervisor.cancel_sent", "the cancel was sent to agentctl | the intent is open", _AGAIN),
    CrashPoint("supervisor.setting_sent", "agentctl has the change of a setting | the intent is open", _AGAIN),
    CrashPoint("supervisor.agent_stopped", "the agent has ended | its agentctl runs, the intent is open", _AGAIN),
    CrashPoint("supervisor.stop_sent", "agentctl was asked to stop | its end was not observed", _GO_ON),
    CrashPoint("supervisor.execution_ended", "every process has ended | states and turn are not updated", _GO_ON),
    CrashPoint(
        "supervisor.stop_written",
        "states and turn are written | the intent is open",
        "The intent is carried out again.",
    ),
    CrashPoint(
        "supervisor.stop_settled",
        "the intent is settled | the lease is not released",
        "A dead supervisor's lease can be taken.",
    ),
    # workflows
    CrashPoint(
        "workflow.step_written",
        "records, prompts and intents of a step are written | their transaction is not committed",
        "The next supervisor takes the same step.",
    ),
    CrashPoint("workflow.step_committed", "a step is committed | its work has not started", _STEP),
    CrashPoint("workflow.job_asked", "agentctl has a node's script | the database has no record of that", _SAME_JOB),
    CrashPoint("workflow.jobs_ended", "the scripts of a cancelled run have ended | the run is open", _STEP),
    # the sweep
    CrashPoint("sweep.decided", "all decisions are made | none is carried out", "The next sweep decides the same."),
    CrashPoint(
        "sweep.leftovers_ended", "leftover processes are ended | nothing is written", "The next sweep continues."
    ),
    CrashPoint(
        "sweep.taken_over", "the execution is attached and its journal read | the decision is not written", _REATTACH
    ),
    CrashPoint(
        "sweep.drained", "a dead execution's journal is read | the decision is not written", "The next sweep continues."
    ),
    CrashPoint(
        "sweep.row_unwritten", "a decision is written | its transaction is not committed", "The next sweep continues."
    ),
    CrashPoint("sweep.row_written", "a decision is committed with its intents | the lease is still held", _GO_ON),
    CrashPoint("sweep.written", "all decisions are written | the sweep is not stored", _GO_ON),
    # the portable record
    CrashPoint("export.lines_written", "lines are written to the record | they are not synced to disk", _BY_SEQ),
    CrashPoint("export.lines_synced", "lines are synced to disk | the snapshot is older", _BY_SEQ),
    CrashPoint("export.snapshot_drafted", "a new snapshot is written | it has not replaced the old one", _BY_SEQ),
    CrashPoint("export.snapshot_replaced", "the snapshot is replaced | the exporter's cursor is older", _BY_SEQ),
    CrashPoint(
        "export.cursor_drafted", "the exporter's new cursor is written | it has not replaced the old one", _BY_SEQ
    ),
    CrashPoint("export.cursor_replaced", "the exporter's cursor is replaced | nothing is left to do", _BY_SEQ),
    # the end of a supervisor
    CrashPoint("shutdown.begun", "a supervisor was asked to stop | it holds all its leases", _REATTACH),
    CrashPoint("shutdown.unregistered", "its own row is gone | it holds all its leases", "The leases expire."),
    CrashPoint("shutdown.released", "its leases are released | it has not ended", "Nothing is left to do."),
    # agentctl's start
    CrashPoint("agentctl.lock_taken", "it has its directory's lock | it does not listen", _NO_AGENT),
    CrashPoint("agentctl.listening", "it listens | its ready file is not written", _NO_AGENT),
    CrashPoint("agentctl.ready_told", "its ready file is written | no client has connected", _DEAD),
    CrashPoint("agentctl.start_begun", "`agent.starting` is in the journal | no process was started", _DEAD),
    CrashPoint("agentctl.agent_spawned", "the agent's process runs | it has written nothing", _DEAD),
    CrashPoint("agentctl.token_kept", "the conversation's id is saved | its line is not in the journal", _DEAD),
    CrashPoint("agentctl.agent_ready", "`agent.started` is on disk | the launch is not recorded", _DEAD),
    CrashPoint("agentctl.launch_remembered", "the launch is recorded | its answer is not sent", _DEAD),
    # agentctl's turn
    CrashPoint(
        "agentctl.prompt_journaled",
        "`prompt.accepted` is on disk | the prompt is not recorded",
        "The prompt is in the journal. It is held unless the agent's conversation contains it.",
    ),
    CrashPoint(
        "agentctl.prompt_accepted",
        "the prompt is recorded | the agent does not have it",
        "The prompt is held unless the agent's conversation contains it.",
    ),
    CrashPoint(
        "agentctl.prompt_handed_over",
        "the agent has the prompt | `prompt.delivered` is not in the journal",
        "The prompt is held; if the agent's conversation contains it, the turn is interrupted.",
    ),
    CrashPoint(
        "agentctl.prompt_delivered",
        "`prompt.delivered` is on disk | the turn continues",
        "The turn is marked as interrupted.",
    ),
    CrashPoint("agentctl.turn_ended", "the turn's end is on disk | it has not been read", _DEAD),
    CrashPoint(
        "agentctl.permission_asked",
        "`permission.requested` is in the journal | it may not have been read",
        "The turn is marked as interrupted and the permission as expired.",
    ),
    CrashPoint(
        "agentctl.answer_journaled",
        "the answer is on disk | the agent does not have it",
        "The turn is marked as interrupted; the answer stays in the log.",
    ),
    CrashPoint(
        "agentctl.setting_journaled",
        "the change of a setting is on disk | agentctl does not know its id",
        "The next start of the agent applies it again.",
    ),
    CrashPoint("agentctl.cancel_remembered", "the cancel is recorded | the agent was not asked", _DEAD),
    CrashPoint("agentctl.cancel_asked", "the agent was asked to cancel | it has not ended its turn", _DEAD),
    # agentctl's jobs
    CrashPoint("agentctl.job_prepared", "a script's files are written | the script is not recorded", _NO_JOB),
    CrashPoint("agentctl.job_remembered", "a script is recorded | it has not started", _JOB_NOT_BEGUN),
    CrashPoint("agentctl.job_spawned", "a script's guard runs | the caller has no answer", _JOB_ENDED),
    CrashPoint("agentctl.job_ended", "a script's end is on disk | it was not reported", _JOB_ENDED),
    # agentctl's journal
    CrashPoint(
        "agentctl.journal_written",
        "a batch is written | it is not synced to disk",
        "An incomplete last line is removed.",
    ),
    CrashPoint("agentctl.journal_synced", "a batch is on disk | it was not sent to readers", "It is read from disk."),
    CrashPoint("agentctl.segment_added", "a new segment is created | it is empty", "The journal continues in it."),
    CrashPoint(
        "agentctl.segment_dropped", "an acknowledged segment is deleted | others remain", "The cursor is past it."
    ),
    # agentctl's end
    CrashPoint("agentctl.agent_stopped", "the agent has ended | the command is not recorded", _DEAD),
    CrashPoint("agentctl.stop_remembered", "the stop is recorded | its answer is not sent", _DEAD),
    CrashPoint("agentctl.ending", "the agent has ended and agentctl is ending | the journal is not closed", _DEAD),
)
"""The points, in the order of a session's life."""


POINT_NAMES: Final = frozenset(point.name for point in CRASH_POINTS)
"""All names of crash points."""

_EACH: Final = "each"


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


_armed_points: list[_ArmedPoint] = []
_subject: list[str] = []


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
