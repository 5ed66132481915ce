"""Generate ``docs/states.md`` and ``docs/recovery.md`` from the tables in the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from executors_app.agentctl.protocol import AgentState
from executors_app.domain import ExecutorStatus, Observation, Observed, WorkspaceState
from sessions_app.domain.recovery import RULES, decide
from sessions_app.domain.recovery_facts import OTHER_HOST, Decision, Policy, SweepFacts
from sessions_app.domain.resumability import Assessment, Mode, ResumeFacts, assess, assess_mode
from sessions_app.domain.states import (
    MACHINES,
    DesiredState,
    Machine,
    RunFacts,
    RunState,
    SessionState,
    TaskState,
    WorkState,
    derive_status,
    task_state,
)
from sessions_app.domain.wait_tokens import TokenState

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
RESUME = ResumeFacts(
    session_state=SessionState.WAITING_FOR_INPUT,
    task_archived=False,
    running=False,
    last_seen_at=None,
    known_dead=True,
    workspace=WorkspaceState.PRESENT,
    context_mismatch=False,
    ever_prompted=True,
    type_supports_resume=True,
    profile_supports_resume=None,
    probed_supports_resume=None,
    has_token=True,
    token_rejected=False,
    history_allowed=False,
    has_row=True,
    desired_state=DesiredState.RUNNING,
    stopped_by_user=False,
)
"""An idle session whose agent can resume its own conversation."""


def example_assessment(**changes: Any) -> Assessment:
    """Return the assessment of ``RESUME`` with changes, without its agent."""
    return assess(replace(RESUME, **{**changes, "running": False, "known_dead": True}), NOW)


LOST = example_assessment(type_supports_resume=False)
_WORKSPACE = {
    "has_agent": False,
    "assessment": example_assessment(has_agent=False),
    "session_state": SessionState.WAITING_FOR_INPUT,
    "has_open_run": False,
    "known_launch_id": None,
}
SWEEP = SweepFacts(
    session_id="session",
    task_id="task",
    runtime="local_standalone",
    session_state=SessionState.RUNNING,
    executor_status=ExecutorStatus.READY,
    executor_error_code="",
    desired_state=DesiredState.RUNNING,
    work_state=WorkState.WORKING,
    task_archived=False,
    task_closed=False,
    policy=Policy.AUTO,
    assessment=example_assessment(),
    workspace=WorkspaceState.PRESENT,
    workspace_reason="",
    has_open_run=True,
    has_queued_prompts=False,
    known_launch_id="launch",
    started_at=None,
    start_in_flight=False,
    foreign_lease=False,
    boot=True,
    unknown_before=False,
    asleep=False,
    attached=False,
    attempts=0,
    next_restart_at=None,
    owner_in_team=True,
)
"""A session in the middle of a turn, as its rows look to a sweep at boot."""


def observed_alive(state: AgentState | None, **more: Any) -> Observation:
    """Return an observation of an agentctl that answers, with an agent in ``state``; None: without a report."""
    agent = {"state": str(state), "active_turn": None, "launch_id": "launch"}
    return Observation(Observed.ALIVE, report={"agent": agent} if state else None, **more)


WORKING, IDLE, EXITED = (observed_alive(state) for state in (AgentState.WORKING, AgentState.IDLE, AgentState.EXITED))
DEAD = Observation(Observed.DEAD, reason="process_gone")
UNKNOWN = Observation(Observed.UNKNOWN, reason="timeout")


@dataclass(frozen=True, slots=True)
class Example:
    """One example; ``rule`` is the rule that it illustrates."""

    rule: str
    facts: SweepFacts
    observation: Observation


def _example(rule: str, observation: Observation, **changes: Any) -> Example:
    return Example(rule, replace(SWEEP, **changes), observation)


_ASLEEP = {
    "asleep": True,
    "executor_status": ExecutorStatus.STOPPED,
    "session_state": SessionState.WAITING_FOR_INPUT,
    "work_state": WorkState.IDLE,
    "has_open_run": False,
}
_LATER = NOW + timedelta(minutes=1)
EXAMPLES = (
    _example("foreign_lease", WORKING, foreign_lease=True),
    _example("other_host", Observation(Observed.UNKNOWN, reason=OTHER_HOST)),
    _example("attached", UNKNOWN, attached=True, boot=False),
    _example("alive_unwanted", WORKING, desired_state=DesiredState.STOPPED),
    _example("asleep_but_alive", IDLE, **_ASLEEP),
    _example("asleep", DEAD, **_ASLEEP),
    _example("start_under_way", DEAD, start_in_flight=True, started_at=NOW, executor_status=ExecutorStatus.STARTING),
    _example("unknown_stopped", UNKNOWN, executor_status=ExecutorStatus.STOPPED),
    _example("unknown_boot", UNKNOWN),
    _example("unknown_again", UNKNOWN, boot=False, unknown_before=True),
    _example("unknown_first", UNKNOWN, boot=False),
    _example("alive_no_report", observed_alive(None)),
    _example("alive_workspace_session", observed_alive(AgentState.NONE), **_WORKSPACE),
    _example("alive_same_agent", IDLE),
    _example(
        "alive_workspace_only",
        observed_alive(AgentState.NONE),
        assessment=LOST,
        workspace_only=True,
        has_open_run=False,
    ),
    _example("alive_agent_gone_not_resumable", EXITED, assessment=LOST),
    _example("dead_unwanted", DEAD, desired_state=DesiredState.STOPPED),
    _example("owner_left", DEAD, owner_in_team=False),
    _example("gave_up", DEAD, attempts=5),
    _example("backing_off", DEAD, attempts=2, next_restart_at=_LATER),
    _example("waits_for_turn", DEAD, start_rank=4, before=3),
    _example("alive_agent_gone_resume_now", EXITED),
    _example("alive_agent_gone_resume_later", EXITED, policy=Policy.ON_OPEN),
    _example("dead_resume_now", DEAD),
    _example("dead_workspace_session", DEAD, **_WORKSPACE),
    _example("dead_not_resumable", DEAD, assessment=LOST),
    _example("dead_not_resumable_later", DEAD, assessment=LOST, policy=Policy.MANUAL),
    _example(
        "dead_workspace_gone",
        Observation(Observed.DEAD, workspace=WorkspaceState.GONE, workspace_reason="The branch was deleted."),
        workspace=WorkspaceState.GONE,
        assessment=example_assessment(workspace=WorkspaceState.GONE),
    ),
    _example("dead_resume_later", DEAD, policy=Policy.ON_OPEN),
)

_NO_TYPE = {"type_supports_resume": False, "has_token": False}
_REJECTED = {"has_token": False, "token_rejected": True}
RESUME_EXAMPLES: tuple[tuple[int, str, ResumeFacts], ...] = tuple(
    (row, words, replace(RESUME, **changes))
    for row, words, changes in (
        (1, "the agent runs", {"running": True, "known_dead": False}),
        (2, "seen within 30 s, not known dead", {"known_dead": False, "last_seen_at": NOW - timedelta(seconds=10)}),
        (3, "completed, cancelled, or the task archived", {"session_state": SessionState.COMPLETED}),
        (4, "given up", {"session_state": SessionState.FAILED}),
        (5, "the worktree is gone for good", {"workspace": WorkspaceState.GONE}),
        (6, "the last load contradicted the journal", {"context_mismatch": True}),
        (7, "never prompted", {"ever_prompted": False, "has_token": False}),
        (8, "native, token present", {}),
        (9, "no token, history allowed", _NO_TYPE | {"history_allowed": True}),
        (9, "token rejected, history allowed", _REJECTED | {"history_allowed": True}),
        (10, "token rejected, history not allowed", _REJECTED),
        (10, "token of another profile, type or directory", _REJECTED | {"token_strange": True}),
        (11, "native, no token", {"has_token": False}),
        (12, "neither", _NO_TYPE),
        (13, "a workspace that has no agent", {"has_agent": False, "ever_prompted": False, "has_token": False}),
        (8, "native, stopped by its user", {"desired_state": DesiredState.STOPPED, "stopped_by_user": True}),
    )
)
"""Row, condition in words, facts. The last one shows how a user's stop hides the row under it."""


_GENERATED = "<!-- Written by `manage.py write_docs`. Change the tables, not this file. -->"
_TITLES = {
    "session": "Session (`task_sessions.state`)",
    "executor": "Executor (`executors_running.status`)",
    "work": "Work (`work_state`)",
    "prompt": "Prompt (the ledger)",
    "run": "Run (one turn or wait)",
}
_S, _R = SessionState, RunState
_TASKS: tuple[tuple[str, list[SessionState]], ...] = (
    ("one is STARTING or RUNNING", [_S.RUNNING, _S.ERROR]),
    ("one is WAITING_FOR_INPUT, ERROR or COMPLETED", [_S.COMPLETED, _S.FAILED]),
    ("all are FAILED", [_S.FAILED]),
    ("anything else", []),
)
_NEWEST = (
    ("has not ended, and its agent is gone", RunFacts(_R.RUNNING, waited=False, process_gone=True)),
    ("was interrupted outside a wait", RunFacts(_R.INTERRUPTED, waited=False, process_gone=True)),
    ("was interrupted during a wait", RunFacts(_R.INTERRUPTED, waited=True, process_gone=True)),
    (
        "waits, and its key can no longer be used",
        RunFacts(_R.WAITING, waited=True, token=TokenState.EXPIRED),
    ),
    ("waits", RunFacts(_R.WAITING, waited=True, process_gone=False)),
    ("is in progress", RunFacts(_R.RUNNING, waited=False, process_gone=False)),
    ("has ended, or there is none", None),
)


def state_diagram(machine: Machine) -> str:
    """Return a Mermaid diagram of a machine; moves between the same two states share one arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, move, target in machine.edges():
        arrows.setdefault((source, target), []).append(move)
    lines = [f"    {source} --> {target}: {', '.join(moves)}" for (source, target), moves in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def states_document() -> str:
    """Return ``states.md``: diagram and moves of every machine, and the derived states."""
    sections = [
        "# State machines",
        _GENERATED,
        (
            "A transition that is not in these tables raises an error and changes nothing. The derived status and the "
            "task's state follow from these states; they have no transitions of their own."
        ),
    ]
    for machine in MACHINES:
        rows = [
            (f"`{move}`", ", ".join(sorted(map(str, sources))), str(target))
            for move, (sources, target) in machine.moves.items()
        ]
        sections += [
            f"## {_TITLES[machine.name]}",
            state_diagram(machine),
            markdown_table(("move", "from", "to"), rows),
        ]
    return _joined([*sections, *_derived_states()])


def _derived_states() -> Iterator[str]:
    """Yield the sections about states that are derived, or set by users."""
    yield "## Task (`tasks.state`)"
    yield "The first matching row applies."
    said = ("any: a user marked the task, and has not reopened it", f"{TaskState.DONE}, {TaskState.CANCELLED}")
    followed = [(words, str(task_state(TaskState.TODO, states))) for words, states in _TASKS]
    yield markdown_table(("its sessions", "the task"), [said, *followed])
    yield "## Derived status"
    yield "Derived from the newest run, and never stored."
    yield markdown_table(
        ("the newest run", "derived status"), [(words, f"`{derive_status(run)}`") for words, run in _NEWEST]
    )
    yield "## Desired state (`desired_state`)"
    words = {DesiredState.RUNNING: "keep it running", DesiredState.STOPPED: "stopped, closed or archived"}
    yield markdown_table(("desired state", "meaning"), [(f"`{wanted}`", words[wanted]) for wanted in DesiredState])


def recovery_document() -> str:
    """Return ``recovery.md``: what a sweep decides, and whether a session can be resumed."""
    return _joined(
        [
            "# Recovery",
            _GENERATED,
            "## What a sweep decides",
            (
                "The first matching rule decides. The table shows the decision of each rule about a session that was "
                "in the middle of a turn, in a sweep at boot unless the rule says otherwise."
            ),
            _decisions(),
            (
                "The leftover processes of a dead execution are ended first, after proof that they belong to it, "
                "unless another process is working on it (`foreign_lease`, `attached`, `start_under_way`). The error "
                "`unreachable` is cleared by the next answer."
            ),
            (
                "A session whose rows contain impossible values (`damaged_row`: an unknown state, a negative cursor, a "
                "secret that no key decrypts, a missing execution or agent type) is reported and skipped; all others "
                "recover. A time more than a day in the future comes from a wrong clock and is not waited for."
            ),
            "## Whether a session can be resumed",
            "The first matching row applies.",
            _assessments(),
            "## The result of a request to resume",
            (
                "By row and mode: the strategy, or the error code of the refusal. For rows 1 and 2 and after a stop by "
                "the user, the next matching row applies, but a running agent is never started twice."
            ),
            _modes(),
        ]
    )


def _joined(sections: Iterable[str]) -> str:
    return "\n\n".join(sections) + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a ``|`` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _decisions() -> str:
    says = {rule.name: rule.says for rule in RULES}
    rows = [
        (f"`{example.rule}`", says[example.rule], *_cells(decide(example.facts, example.observation, NOW)))
        for example in EXAMPLES
    ]
    return markdown_table(("rule", "meaning", "observed", "executor", "session", "agent", "open run"), rows)


def _cells(decision: Decision) -> tuple[str, ...]:
    code = f" `{decision.session_error_code}`" if decision.session_error_code else ""
    return (
        str(decision.observed),
        decision.executor_move or "–",
        f"{decision.session_move}{code}" if decision.session_move else "–",
        " ".join(filter(None, (decision.agent_action, decision.strategy and f"({decision.strategy})"))),
        "interrupted" if decision.interrupt_run else "unchanged",
    )


def _assessments() -> str:
    rows = []
    for row, words, facts in RESUME_EXAMPLES:
        said = assess(facts, NOW)
        needed = "yes" if said.needs_resume else "no"
        resumable = "yes" if said.is_resumable else "no"
        rows.append((str(row), words, resumable, needed, f"`{said.resume_reason}`", str(said.strategy or "–")))
    return markdown_table(("row", "condition", "is_resumable", "needs_resume", "resume_reason", "strategy"), rows)


def _modes() -> str:
    rows = [(str(row), words, *(_verdict(facts, mode) for mode in Mode)) for row, words, facts in RESUME_EXAMPLES]
    return markdown_table(("row", "condition", *(f"`{mode}`" for mode in Mode)), rows)


def _verdict(facts: ResumeFacts, mode: Mode) -> str:
    verdict = assess_mode(assess(facts, NOW), mode)
    return f"409 `{verdict.refusal}`" if verdict.refusal else str(verdict.strategy or "no agent")
