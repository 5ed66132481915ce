"""Named places where a test can kill a process to prove that a crash there does no harm.

Each with the steps around it and what the next start does.
"""

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
    """What has been done | what has not."""
    next: str
    """What happens then, without anybody's help."""

    @property
    def steps(self) -> tuple[str, str]:
        """What has been done, and what has not."""
        done, _, undone = self.between.partition(" | ")
        return done, undone

    @property
    def processes(self) -> tuple[str, ...]:
        """Who may stand there."""
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
"""By the first part of a point's name. The worker keeps nothing and takes part in nothing of a session."""

_ASKED = "Nothing was asked; who asks again with the same id asks for the first time."
_FOUND = "The supervisor finds the row by the clock; the same request again finds it, too."
_GO_ON = "The order is still open: the next supervisor goes on with it."
_REATTACH = "The sweep finds the execution alive and takes it over."
_AGAIN = "The order is given again; agentctl knows it and answers as the first time."
_DEAD = "The sweep finds it dead, ends what it left, reads its journal and starts it again."
_BY_SEQ = "The exporter goes on behind the last whole line of the record."
_NO_JOB = "Nothing was run; who asks again with the same id asks for the first time."
_JOB_NOT_BEGUN = "It never begins: its end says that agentctl ended, and no exit code."
_JOB_ENDED = "Its guard ends it and writes down how; the next agentctl tells it, and runs nothing again."
_NO_AGENT = "The start is tried again after a pause; a half-started agent has ended with its guard."
_STEP = "The next supervisor finds it in the rows and goes on."
_SAME_JOB = "It is asked for again by its id, and does not run a second time."

CRASH_POINTS: Final = (
    # what is asked
    CrashPoint("request.order_written", "an order is in its table | its transaction is not committed", _ASKED),
    CrashPoint("request.order_committed", "an order is committed | nobody is woken, the caller has no answer", _FOUND),
    CrashPoint("request.prompt_written", "a prompt is in the ledger | its transaction is not committed", _ASKED),
    CrashPoint("request.prompt_committed", "a prompt is committed | nobody is woken, the caller has no answer", _FOUND),
    # taking over
    CrashPoint("supervisor.leased", "the lease is taken | agentctl has not been told the generation", _REATTACH),
    CrashPoint("supervisor.attached", "agentctl has confirmed the generation | nothing was commanded", _REATTACH),
    # a start
    CrashPoint("supervisor.start_claimed", "a start is claimed and counted | nothing is launched", _GO_ON),
    CrashPoint("supervisor.launched", "agentctl is up | its place is not in the row", "It is found again by its id."),
    CrashPoint("supervisor.launch_written", "the row names agentctl | nobody is attached to it", _GO_ON),
    CrashPoint(
        "supervisor.agent_prepared", "the strategy is written | agentctl was not told to start the agent", _GO_ON
    ),
    CrashPoint("supervisor.agent_started", "the agent is up | token, receipt and state are not written", _AGAIN),
    CrashPoint(
        "supervisor.agent_start_written", "all of the start is written | nobody went on to the prompts", _REATTACH
    ),
    CrashPoint("supervisor.start_failed", "a start has failed | nothing of it is written", _AGAIN),
    CrashPoint(
        "supervisor.start_failure_written",
        "the failure is written | nobody waits for its next try",
        "The loop makes the next try when it is due.",
    ),
    # a prompt
    CrashPoint(
        "supervisor.prompt_sending",
        "the prompt is *sending* | the command has not left",
        "It is given to the same journal epoch; if that is gone, it is held.",
    ),
    CrashPoint(
        "supervisor.prompt_sent", "agentctl has accepted the prompt | the journal's line is not read", _REATTACH
    ),
    # the journal
    CrashPoint(
        "supervisor.ingest_before_commit",
        "a batch of lines is written | its transaction is not committed",
        "The cursor stands before the batch: it is read again.",
    ),
    CrashPoint(
        "supervisor.ingest_after_commit",
        "a batch is committed | agentctl has no acknowledgement",
        "The cursor stands behind the batch: it is not read again.",
    ),
    CrashPoint("supervisor.ingest_acked", "a batch is acknowledged | no prompt was looked for", _REATTACH),
    # orders that overtake
    CrashPoint("supervisor.answer_sent", "agentctl has the answer | the order is open", _AGAIN),
    CrashPoint("supervisor.cancel_sent", "agentctl was told to cancel | the order is open", _AGAIN),
    CrashPoint("supervisor.agent_stopped", "the agent has ended | its agentctl lives, the order is open", _AGAIN),
    CrashPoint("supervisor.stop_sent", "agentctl was told to end | nobody has seen its end", _GO_ON),
    CrashPoint("supervisor.execution_ended", "every process has ended | states and turn are as they were", _GO_ON),
    CrashPoint(
        "supervisor.stop_written", "states and turn are written | the order is open", "The order is done again."
    ),
    CrashPoint(
        "supervisor.stop_settled",
        "the order is settled | the lease is not given back",
        "The lease of a dead owner is free.",
    ),
    # workflows
    CrashPoint(
        "workflow.step_written",
        "records, prompts and orders of a step are written | their transaction is not committed",
        "The next supervisor takes the same step.",
    ),
    CrashPoint("workflow.step_committed", "a step is committed | what it asks for is not begun", _STEP),
    CrashPoint("workflow.job_asked", "agentctl has the script of a node | no row says so", _SAME_JOB),
    CrashPoint("workflow.jobs_ended", "the scripts of a cancelled run have ended | the run is open", _STEP),
    # the sweep
    CrashPoint("sweep.decided", "all is decided | nothing is done", "The next sweep decides the same."),
    CrashPoint("sweep.leftovers_ended", "leftovers are ended | nothing is written", "The next sweep goes on."),
    CrashPoint("sweep.taken_over", "it is attached and its journal read | the decision is not written", _REATTACH),
    CrashPoint(
        "sweep.drained", "a dead one's journal is read | the decision is not written", "The next sweep goes on."
    ),
    CrashPoint(
        "sweep.row_unwritten", "a decision is written | its transaction is not committed", "The next sweep goes on."
    ),
    CrashPoint("sweep.row_written", "a decision is committed, with its orders | the lease is ours", _GO_ON),
    CrashPoint("sweep.written", "all decisions are written | the sweep is not stored", _GO_ON),
    # the portable record
    CrashPoint("export.lines_written", "lines are in the record | they are not on the disk", _BY_SEQ),
    CrashPoint("export.lines_synced", "lines are on the disk | the snapshot is older", _BY_SEQ),
    CrashPoint("export.snapshot_drafted", "a new snapshot is written | it is not in its place", _BY_SEQ),
    CrashPoint("export.snapshot_replaced", "a new snapshot is in its place | the exporter's cursor is older", _BY_SEQ),
    CrashPoint("export.cursor_drafted", "all is written but the exporter's cursor | that is not in its place", _BY_SEQ),
    CrashPoint("export.cursor_replaced", "the exporter's cursor is in its place | nothing is left to do", _BY_SEQ),
    # the end of a supervisor
    CrashPoint("shutdown.begun", "a supervisor was told to end | it holds all its leases", _REATTACH),
    CrashPoint("shutdown.unregistered", "its own row is gone | it holds all its leases", "The leases run out."),
    CrashPoint("shutdown.released", "its leases are given back | it has not ended", "Nothing is left to do."),
    # agentctl's start
    CrashPoint("agentctl.lock_taken", "it has its directory's lock | it does not listen", _NO_AGENT),
    CrashPoint("agentctl.listening", "it listens | its ready file is not written", _NO_AGENT),
    CrashPoint("agentctl.ready_told", "its ready file is written | nobody has spoken to it", _DEAD),
    CrashPoint("agentctl.start_begun", "`agent.starting` is in the journal | no process was started", _DEAD),
    CrashPoint("agentctl.agent_spawned", "the agent's process runs | it has said nothing", _DEAD),
    CrashPoint("agentctl.token_kept", "the conversation's id is kept | its line is not in the journal", _DEAD),
    CrashPoint("agentctl.agent_ready", "`agent.started` is on the disk | the launch is not remembered", _DEAD),
    CrashPoint("agentctl.launch_remembered", "the launch is remembered | its answer is not sent", _DEAD),
    # agentctl's turn
    CrashPoint(
        "agentctl.prompt_journaled",
        "`prompt.accepted` is on the disk | the prompt is not remembered",
        "The journal remembers it: held, unless the agent's conversation shows it.",
    ),
    CrashPoint(
        "agentctl.prompt_accepted",
        "the prompt is remembered | the agent does not have it",
        "Held, unless the agent's conversation shows it.",
    ),
    CrashPoint(
        "agentctl.prompt_handed_over",
        "the agent has the text | `prompt.delivered` is not in the journal",
        "Held, or interrupted where the agent's conversation shows it.",
    ),
    CrashPoint(
        "agentctl.prompt_delivered", "`prompt.delivered` is on the disk | the turn goes on", "Interrupted, said so."
    ),
    CrashPoint("agentctl.turn_ended", "the turn's end is on the disk | nobody has read it", _DEAD),
    CrashPoint(
        "agentctl.permission_asked",
        "`permission.requested` is in the journal | nobody may have seen it",
        "The turn is interrupted, the permission expired, said so.",
    ),
    CrashPoint(
        "agentctl.answer_journaled",
        "the answer is on the disk | the agent does not have it",
        "The turn is interrupted; the answer stays in the log.",
    ),
    CrashPoint("agentctl.cancel_remembered", "the cancel is remembered | the agent was not asked", _DEAD),
    CrashPoint("agentctl.cancel_asked", "the agent was asked to cancel | it has not ended its turn", _DEAD),
    # agentctl's jobs
    CrashPoint("agentctl.job_prepared", "a script's files are there | nobody remembers the script", _NO_JOB),
    CrashPoint("agentctl.job_remembered", "a script is remembered | it has not begun", _JOB_NOT_BEGUN),
    CrashPoint("agentctl.job_spawned", "a script's guard runs | who asked has no answer", _JOB_ENDED),
    CrashPoint("agentctl.job_ended", "a script's end is on the disk | nobody was told", _JOB_ENDED),
    # agentctl's journal
    CrashPoint("agentctl.journal_written", "a batch is written | it is not on the disk", "A torn last line is cut."),
    CrashPoint("agentctl.journal_synced", "a batch is on the disk | nobody was shown it", "It is read from the disk."),
    CrashPoint("agentctl.segment_added", "a new segment is made | nothing is in it", "The journal goes on in it."),
    CrashPoint(
        "agentctl.segment_dropped", "an acknowledged segment is deleted | others remain", "The cursor is behind it."
    ),
    # agentctl's end
    CrashPoint("agentctl.agent_stopped", "the agent has ended | the order is not remembered", _DEAD),
    CrashPoint("agentctl.stop_remembered", "the stop is remembered | its answer is not sent", _DEAD),
    CrashPoint("agentctl.ending", "the agent has ended, agentctl ends | the journal is not closed", _DEAD),
)
"""In the order of a session's life."""


POINT_NAMES: Final = frozenset(point.name for point in CRASH_POINTS)
"""Every name there is; what lies before and behind each is in the table."""

_EACH: Final = "each"


class _ArmedPoint:
    """One point at which this process is to die."""

    def __init__(self, spec: str, reached_dir: Path):
        self.name, _, count = spec.partition(":")
        self.each = count == _EACH
        self.countdown = 0 if self.each else _times(spec, count)
        self.reached_dir = reached_dir

    def visit(self, subject: str) -> None:
        """Note that the point was reached; die there if it is time."""
        with (self.reached_dir / f"{self.name}.log").open("a") as log:
            log.write(f"{subject or '-'}\n")
        if self.each:
            self._spring(f"{self.name}.{subject}", subject)
            return
        self.countdown -= 1
        if self.countdown == 0:
            self._spring(self.name, subject)

    def _spring(self, file: str, subject: str) -> None:
        """Leave a file named like the point, on the disk, and die without any cleanup; it names the session.

        Where the file already is, an earlier process has died there: this one goes on.
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
    """Raise ValueError for a spec with an unknown name or a bad N."""
    for one in spec.split(","):
        name, _, count = one.partition(":")
        _check(name)
        if count != _EACH:
            _times(one, count)


def arm(spec: str, reached_dir: str | os.PathLike[str], subject: str = "") -> None:
    """Let this process die at ``spec``: points with commas between them, each ``name``, ``name:N`` or ``name:each``.

    ``name:N`` is the N-th time that this process reaches it, ``name:each`` the first time for each
    session (agentctl, which has one, says which by ``subject``). There a file ``reached_dir/name``
    (``name.<session>``) is made; if that is there already, nothing happens, so that a process started
    again with the same environment survives. ``reached_dir/name.log`` gets a line, the session, each
    time the point is reached. ValueError for an unknown name or a bad N.
    """
    check(spec)
    _armed_points[:] = [_ArmedPoint(one, Path(reached_dir)) for one in spec.split(",")]
    _subject[:] = [subject]


def disarm() -> None:
    """Make every point harmless again."""
    _armed_points.clear()


def reached(name: str, session: object = "") -> None:
    """Say that the process stands at the point ``name``, for a session; ValueError for an unknown name."""
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
