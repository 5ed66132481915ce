"""The facts about every crash point: who stands there, between which steps, and what the next start does.

The document of recovery shows this table, and the chaos tests kill at each of its lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Point:
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

POINTS: Final = (
    # what is asked
    Point("request.order_written", "an order is in its table | its transaction is not committed", _ASKED),
    Point("request.order_committed", "an order is committed | nobody is woken, the caller has no answer", _FOUND),
    Point("request.prompt_written", "a prompt is in the ledger | its transaction is not committed", _ASKED),
    Point("request.prompt_committed", "a prompt is committed | nobody is woken, the caller has no answer", _FOUND),
    # taking over
    Point("supervisor.leased", "the lease is taken | agentctl has not been told the generation", _REATTACH),
    Point("supervisor.attached", "agentctl has confirmed the generation | nothing was commanded", _REATTACH),
    # a start
    Point("supervisor.start_claimed", "a start is claimed and counted | nothing is launched", _GO_ON),
    Point("supervisor.launched", "agentctl is up | its place is not in the row", "It is found again by its id."),
    Point("supervisor.launch_written", "the row names agentctl | nobody is attached to it", _GO_ON),
    Point("supervisor.agent_prepared", "the strategy is written | agentctl was not told to start the agent", _GO_ON),
    Point("supervisor.agent_started", "the agent is up | token, receipt and state are not written", _AGAIN),
    Point("supervisor.agent_start_written", "all of the start is written | nobody went on to the prompts", _REATTACH),
    Point("supervisor.start_failed", "a start has failed | nothing of it is written", _AGAIN),
    Point(
        "supervisor.start_failure_written",
        "the failure is written | nobody waits for its next try",
        "The loop makes the next try when it is due.",
    ),
    # a prompt
    Point(
        "supervisor.prompt_sending",
        "the prompt is *sending* | the command has not left",
        "It is given to the same journal epoch; if that is gone, it is held.",
    ),
    Point("supervisor.prompt_sent", "agentctl has accepted the prompt | the journal's line is not read", _REATTACH),
    # the journal
    Point(
        "supervisor.ingest_before_commit",
        "a batch of lines is written | its transaction is not committed",
        "The cursor stands before the batch: it is read again.",
    ),
    Point(
        "supervisor.ingest_after_commit",
        "a batch is committed | agentctl has no acknowledgement",
        "The cursor stands behind the batch: it is not read again.",
    ),
    Point("supervisor.ingest_acked", "a batch is acknowledged | no prompt was looked for", _REATTACH),
    # orders that overtake
    Point("supervisor.answer_sent", "agentctl has the answer | the order is open", _AGAIN),
    Point("supervisor.cancel_sent", "agentctl was told to cancel | the order is open", _AGAIN),
    Point("supervisor.agent_stopped", "the agent has ended | its agentctl lives, the order is open", _AGAIN),
    Point("supervisor.stop_sent", "agentctl was told to end | nobody has seen its end", _GO_ON),
    Point("supervisor.execution_ended", "every process has ended | states and turn are as they were", _GO_ON),
    Point("supervisor.stop_written", "states and turn are written | the order is open", "The order is done again."),
    Point(
        "supervisor.stop_settled",
        "the order is settled | the lease is not given back",
        "The lease of a dead owner is free.",
    ),
    # workflows
    Point(
        "workflow.step_written",
        "records, prompts and orders of a step are written | their transaction is not committed",
        "The next supervisor takes the same step.",
    ),
    Point("workflow.step_committed", "a step is committed | what it asks for is not begun", _STEP),
    Point("workflow.job_asked", "agentctl has the script of a node | no row says so", _SAME_JOB),
    Point("workflow.jobs_ended", "the scripts of a cancelled run have ended | the run is open", _STEP),
    # the sweep
    Point("sweep.decided", "all is decided | nothing is done", "The next sweep decides the same."),
    Point("sweep.leftovers_ended", "leftovers are ended | nothing is written", "The next sweep goes on."),
    Point("sweep.taken_over", "it is attached and its journal read | the decision is not written", _REATTACH),
    Point("sweep.drained", "a dead one's journal is read | the decision is not written", "The next sweep goes on."),
    Point("sweep.row_unwritten", "a decision is written | its transaction is not committed", "The next sweep goes on."),
    Point("sweep.row_written", "a decision is committed, with its orders | the lease is ours", _GO_ON),
    Point("sweep.written", "all decisions are written | the sweep is not stored", _GO_ON),
    # the portable record
    Point("export.lines_written", "lines are in the record | they are not on the disk", _BY_SEQ),
    Point("export.lines_synced", "lines are on the disk | the snapshot is older", _BY_SEQ),
    Point("export.snapshot_drafted", "a new snapshot is written | it is not in its place", _BY_SEQ),
    Point("export.snapshot_replaced", "a new snapshot is in its place | the exporter's cursor is older", _BY_SEQ),
    Point("export.cursor_drafted", "all is written but the exporter's cursor | that is not in its place", _BY_SEQ),
    Point("export.cursor_replaced", "the exporter's cursor is in its place | nothing is left to do", _BY_SEQ),
    # the end of a supervisor
    Point("shutdown.begun", "a supervisor was told to end | it holds all its leases", _REATTACH),
    Point("shutdown.unregistered", "its own row is gone | it holds all its leases", "The leases run out."),
    Point("shutdown.released", "its leases are given back | it has not ended", "Nothing is left to do."),
    # agentctl's start
    Point("agentctl.lock_taken", "it has its directory's lock | it does not listen", _NO_AGENT),
    Point("agentctl.listening", "it listens | its ready file is not written", _NO_AGENT),
    Point("agentctl.ready_told", "its ready file is written | nobody has spoken to it", _DEAD),
    Point("agentctl.start_begun", "`agent.starting` is in the journal | no process was started", _DEAD),
    Point("agentctl.agent_spawned", "the agent's process runs | it has said nothing", _DEAD),
    Point("agentctl.token_kept", "the conversation's id is kept | its line is not in the journal", _DEAD),
    Point("agentctl.agent_ready", "`agent.started` is on the disk | the launch is not remembered", _DEAD),
    Point("agentctl.launch_remembered", "the launch is remembered | its answer is not sent", _DEAD),
    # agentctl's turn
    Point(
        "agentctl.prompt_journaled",
        "`prompt.accepted` is on the disk | the prompt is not remembered",
        "The journal remembers it: held, unless the agent's conversation shows it.",
    ),
    Point(
        "agentctl.prompt_accepted",
        "the prompt is remembered | the agent does not have it",
        "Held, unless the agent's conversation shows it.",
    ),
    Point(
        "agentctl.prompt_handed_over",
        "the agent has the text | `prompt.delivered` is not in the journal",
        "Held, or interrupted where the agent's conversation shows it.",
    ),
    Point("agentctl.prompt_delivered", "`prompt.delivered` is on the disk | the turn goes on", "Interrupted, said so."),
    Point("agentctl.turn_ended", "the turn's end is on the disk | nobody has read it", _DEAD),
    Point(
        "agentctl.permission_asked",
        "`permission.requested` is in the journal | nobody may have seen it",
        "The turn is interrupted, the permission expired, said so.",
    ),
    Point(
        "agentctl.answer_journaled",
        "the answer is on the disk | the agent does not have it",
        "The turn is interrupted; the answer stays in the log.",
    ),
    Point("agentctl.cancel_remembered", "the cancel is remembered | the agent was not asked", _DEAD),
    Point("agentctl.cancel_asked", "the agent was asked to cancel | it has not ended its turn", _DEAD),
    # agentctl's jobs
    Point("agentctl.job_prepared", "a script's files are there | nobody remembers the script", _NO_JOB),
    Point("agentctl.job_remembered", "a script is remembered | it has not begun", _JOB_NOT_BEGUN),
    Point("agentctl.job_spawned", "a script's guard runs | who asked has no answer", _JOB_ENDED),
    Point("agentctl.job_ended", "a script's end is on the disk | nobody was told", _JOB_ENDED),
    # agentctl's journal
    Point("agentctl.journal_written", "a batch is written | it is not on the disk", "A torn last line is cut."),
    Point("agentctl.journal_synced", "a batch is on the disk | nobody was shown it", "It is read from the disk."),
    Point("agentctl.segment_added", "a new segment is made | nothing is in it", "The journal goes on in it."),
    Point("agentctl.segment_dropped", "an acknowledged segment is deleted | others remain", "The cursor is behind it."),
    # agentctl's end
    Point("agentctl.agent_stopped", "the agent has ended | the order is not remembered", _DEAD),
    Point("agentctl.stop_remembered", "the stop is remembered | its answer is not sent", _DEAD),
    Point("agentctl.ending", "the agent has ended, agentctl ends | the journal is not closed", _DEAD),
)
"""In the order of a session's life."""
