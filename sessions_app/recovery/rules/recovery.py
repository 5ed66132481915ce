"""Decide what a sweep does about one execution: ordered rules, as pure functions.

``decide`` returns the decision, ``explain_decision`` the reasons that ``--explain`` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from executors_app.wire.executions import ExecutorStatus, Observation, Observed, WorkspaceState
from executors_app.wire.protocol import ALIVE_AGENT_STATES, AgentState
from sessions_app.kernel.rules.states import SESSION, TERMINAL_STATES, DesiredState, SessionState, WorkState
from sessions_app.kernel.rules.wording import plural
from sessions_app.recovery.rules.resumability import (
    LEFT_UNREAD_MESSAGE,
    MAX_CLOCK_SKEW,
    UNREACHABLE,
    WORKTREE_MISSING,
    Assessment,
    Policy,
    Reason,
    policy_wants_agent,
)
from sessions_app.sessions.rules.situation_texts import REFUSALS

OTHER_HOST = "other_host"
"""Observation reason of an execution that belongs to another machine, from where alone it can be observed."""

LEFT_UNREAD = "left_unread"
"""Observation reason of an execution that has ended, while what it left cannot be read."""

AgentAction = Literal["none", "reattach", "resume", "start_workspace", "stop"]


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """What the rows say about one session and its execution when a sweep reads them."""

    session_id: str
    task_id: str
    runtime: str
    session_state: SessionState
    executor_status: ExecutorStatus | None
    """None: the session has no execution yet."""
    executor_error_code: str
    desired_state: DesiredState
    work_state: WorkState
    task_archived: bool
    task_closed: bool
    """The task is DONE or CANCELLED."""
    policy: Policy
    assessment: Assessment
    """Assessment with the workspace as just observed. ``Case.assessment`` removes the rows about a live agent."""
    workspace: WorkspaceState
    workspace_reason: str
    has_open_run: bool
    """A run of the agent has not ended. External waits do not count."""
    has_queued_prompts: bool
    known_launch_id: str | None
    """The launch of the agent that the row records."""
    started_at: datetime | None
    """When the status became ``starting``."""
    start_in_flight: bool
    """A start intent is open."""
    foreign_lease: bool
    """Another supervisor holds a lease that has not expired."""
    boot: bool
    """The sweep runs at boot or by command; False in the main loop."""
    unknown_before: bool
    """The previous sweep of the main loop could not observe it either."""
    asleep: bool
    """Stopped because it was idle: status ``stopped``, reason ``idle``."""
    attached: bool
    """This supervisor has its event stream open."""
    attempts: int
    """Starts since the last success; after ``max_attempts`` of them only a user starts it again."""
    next_restart_at: datetime | None
    owner_in_team: bool
    max_attempts: int = 5
    start_timeout: timedelta = timedelta(seconds=300)
    workspace_only: bool = False
    """A user asked for the workspace without an agent, and has sent no prompt since."""
    has_agent: bool = True
    """False: a workspace in which no agent is ever started."""
    start_rank: int | None = None
    """Rank in the start queue; None: it is not in the queue."""
    admitted: bool = False
    """Its turn in the start queue has come."""
    before: int = 0
    """Number of sessions before it in the start queue, as far as this sweep has counted."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a sweep does about one execution; moves are named as in ``states``.

    It is carried out in this order: end leftovers, drain the journal, make the moves, then the agent action. A move
    that draining has already made is skipped.
    """

    rule: str
    observed: Observed
    executor_move: str | None = None
    session_move: str | None = None
    session_error_code: str = ""
    """Error code for ``fail`` and ``give_up``; the execution gets it too if it moves to ``fail``."""
    agent_action: AgentAction = "none"
    strategy: str | None = None
    """Strategy of a ``resume``."""
    reason: str = ""
    error_message: str = ""
    """Message for people, with ``session_error_code``."""
    interrupt_run: bool = False
    """The process of the open run is gone. The run was interrupted, unless the drained journal ends it."""
    end_leftovers: bool = False
    """First end the processes that outlived their agentctl."""
    needs_recheck: bool = False
    """The next sweep checks it, whether or not its row claims to run."""
    start_rank: int | None = None
    """Rank at which it waits in the start queue from now on."""
    wait_reason: str = ""
    """The ``restart_rules.WaitReason`` for that."""
    before: int = 0
    """Number of sessions before it in the start queue."""

    @property
    def is_noop(self) -> bool:
        """Whether there is nothing to write and nothing to do; the main loop then stores no outcome."""
        moves = self.executor_move or self.session_move
        deeds = self.interrupt_run or self.end_leftovers or self.start_rank is not None
        return not moves and not deeds and self.agent_action == "none"


@dataclass(frozen=True, slots=True)
class Case:
    """Facts and observation together, with the conclusions that rules are made of.

    They are not cached: nearly all are cheaper than the lock of ``cached_property``.
    """

    facts: SweepFacts
    observation: Observation
    now: datetime

    @property
    def is_alive(self) -> bool:
        """Whether it answered. An open event stream also proves life; the rule ``attached`` covers that."""
        return self.observation.observed is Observed.ALIVE

    @property
    def is_unknown(self) -> bool:
        """Whether it is neither alive nor proven dead; nothing destructive may follow from that."""
        return self.observation.observed is Observed.UNKNOWN

    @property
    def agent_state(self) -> str | None:
        """``agent.state`` of the report; None without a report."""
        report = self.observation.report
        if report:
            return str(report["agent"]["state"])
        return None

    @property
    def is_agent_alive(self) -> bool:
        """Whether the agent process runs."""
        return self.agent_state in ALIVE_AGENT_STATES

    @property
    def is_agent_working(self) -> bool:
        """Whether the agent is working on a turn."""
        report = self.observation.report
        in_turn = bool(report and report["agent"].get("active_turn"))
        return self.agent_state == AgentState.WORKING or (self.is_agent_alive and in_turn)

    @property
    def is_unwanted(self) -> bool:
        """Whether it should not run: stopped, archived, closed or terminal."""
        facts = self.facts
        stopped = facts.desired_state == DesiredState.STOPPED or facts.session_state in TERMINAL_STATES
        return stopped or facts.task_archived or facts.task_closed

    @property
    def is_start_under_way(self) -> bool:
        """Whether a start is in progress and has time left."""
        facts = self.facts
        began = facts.started_at
        # A start time far in the future comes from a wrong clock; without this limit the start would never be
        # overdue.
        overdue = began is not None and not self.now - facts.start_timeout <= began <= self.now + MAX_CLOCK_SKEW
        by_row = facts.executor_status == ExecutorStatus.STARTING and not facts.boot and facts.started_at is not None
        return (facts.start_in_flight or by_row) and not overdue

    @property
    def assessment(self) -> Assessment:
        """Whether and how it could be resumed now."""
        return self.facts.assessment.without_live_agent

    @property
    def is_workspace_gone(self) -> bool:
        """Whether the worktree is missing and cannot be rebuilt."""
        return WorkspaceState.GONE in (self.facts.workspace, self.observation.workspace)

    @property
    def does_policy_start(self) -> bool:
        """Whether the policy starts anything for this session without a request."""
        facts = self.facts
        if not facts.has_agent:
            return facts.policy != Policy.MANUAL
        return policy_wants_agent(facts.policy, facts.work_state, facts.has_queued_prompts, facts.boot)

    @property
    def is_workspace_only(self) -> bool:
        """Whether its user wants the workspace alone and has sent no prompt since."""
        return self.facts.workspace_only and not self.facts.has_queued_prompts

    @property
    def does_policy_want_agent(self) -> bool:
        """Whether the policy starts its agent without a request."""
        return self.does_policy_start and not self.is_workspace_only

    @property
    def has_given_up(self) -> bool:
        """Whether the session is FAILED, which only a user's *try again* ends."""
        return self.facts.session_state == SessionState.FAILED

    @property
    def is_agent_wanted(self) -> bool:
        """Whether it can be resumed without a decision by a user, and the policy requires that now."""
        can = self.assessment.needs_resume and self.assessment.strategy is not None
        place = self.is_alive or not self.is_workspace_gone
        return can and place and self.does_policy_want_agent and not self.has_given_up

    @property
    def is_agent_lost(self) -> bool:
        """Whether it is gone and its agent cannot come back, but its workspace can."""
        lost = not self.assessment.is_resumable and not self.has_given_up
        return lost and not self.is_alive and not self.is_workspace_gone

    @property
    def is_workspace_wanted(self) -> bool:
        """As ``is_agent_lost``, and the policy starts the workspace now."""
        return self.is_agent_lost and self.does_policy_start

    @property
    def is_start_wanted(self) -> bool:
        """Whether this sweep would start something, before back-off and queue are considered."""
        return self.is_agent_wanted or self.is_workspace_wanted

    @property
    def is_waiting_for_turn(self) -> bool:
        """Whether it waits in the start queue."""
        return self.facts.start_rank is not None and not self.facts.admitted

    @property
    def is_unreachable(self) -> bool:
        """Whether an earlier sweep reported it as unreachable."""
        facts = self.facts
        return facts.executor_status == ExecutorStatus.ERROR and facts.executor_error_code == UNREACHABLE


Fields = dict[str, Any]
S, E = SessionState, ExecutorStatus
CANNOT_RESUME = "This agent cannot resume previous sessions. Create a new session."


# --- moves: the functions return None if there is nothing to move ---


def _executor_ready(case: Case) -> str | None:
    """Return the move towards ``ready``; from ``stopped`` that takes two sweeps, through ``starting``."""
    status = case.facts.executor_status
    if status == E.READY:
        return None
    if status in (None, E.STOPPED):
        return "launch"
    return "ready"


def _executor_stop(case: Case) -> str | None:
    """Return ``stop`` if the row claims to run. Any error but *unreachable* stays, so that it can be read."""
    claims = case.facts.executor_status in (E.STARTING, E.READY) or case.is_unreachable
    if claims:
        return "stop"
    return None


def _executor_fail(case: Case, code: str) -> str | None:
    known = case.facts.executor_status == E.ERROR and case.facts.executor_error_code == code
    if known or case.facts.executor_status is None:
        return None
    return "fail"


def _session_settle(case: Case) -> str | None:
    """Return the move that lets a session wait for its user if it claims an agent."""
    claims = case.facts.session_state in (S.STARTING, S.RUNNING)
    if claims or (case.facts.session_state == S.ERROR and case.is_unreachable):
        return "interrupt"
    return None


def _session_fail(case: Case, *, anew: bool) -> str | None:
    """Return ``fail`` if the session may get this error; ``anew`` replaces the error of a session in ERROR."""
    state = case.facts.session_state
    if SESSION.allows(state, "fail") and (anew or state != S.ERROR):
        return "fail"
    return None


def _session_as_reported(case: Case) -> str | None:
    """Return the move to the state that agentctl reports; None if the session is there already."""
    facts, state = case.facts, case.facts.session_state
    if facts.attached and not case.is_unreachable:
        return None  # the open event stream moves it
    if state == S.CREATED:
        return "start"
    if state == S.ERROR and facts.executor_status == E.READY and not case.is_agent_working:
        return None  # the error is about the conversation, not about the execution
    if case.is_agent_working:
        move, target = "turn_started", S.RUNNING
    elif case.agent_state == AgentState.STARTING:
        move, target = "start", S.STARTING
    else:
        move, target = "ready", S.WAITING_FOR_INPUT
    if state not in (target, S.FAILED) and SESSION.allows(state, move):
        return move
    return None


# --- decisions ---


def leave_unchanged(reason: str, *, needs_recheck: bool = False) -> Callable[[Case], Fields]:
    """Return a decision that changes nothing."""
    return lambda case: {"reason": case.observation.reason or reason, "needs_recheck": needs_recheck}


def stop_execution(case: Case) -> Fields:
    """Take a snapshot, then stop: what the user wants takes precedence over the agent's work."""
    return {"executor_move": _executor_stop(case), "agent_action": "stop", "reason": "no longer wanted"}


def end_asleep_execution(case: Case) -> Fields:
    """End an execution whose session was put to sleep."""
    return {"agent_action": "stop", "reason": "was put to sleep and still answers"}


def mark_unreachable(case: Case) -> Fields:
    """Report that the execution does not answer; run, prompts and work state stay as they are."""
    executor_move = _executor_fail(case, UNREACHABLE)
    return {
        "executor_move": executor_move,
        "session_move": _session_fail(case, anew=executor_move is not None),
        "session_error_code": UNREACHABLE,
        "reason": case.observation.reason or "no answer",
        "error_message": _unreachable_message(case),
        "needs_recheck": True,
    }


def _unreachable_message(case: Case) -> str:
    if case.observation.reason == LEFT_UNREAD:
        return LEFT_UNREAD_MESSAGE
    return "The session's agentctl does not answer; its agent may still be working. Checking again."


def reattach(case: Case) -> Fields:
    """Continue with the running agent; its report decides the session's state."""
    fields: Fields = {"executor_move": _executor_ready(case), "reason": _who_answers(case)}
    if case.agent_state:
        fields["session_move"] = _session_as_reported(case)
    if not case.facts.attached:
        fields["agent_action"] = "reattach"
    return fields


def _who_answers(case: Case) -> str:
    report, known = case.observation.report, case.facts.known_launch_id
    if report and known and report["agent"].get("launch_id") not in (None, known):
        return "the agent of a later launch is running"
    return "the agent is running"


def leave_for_later(case: Case) -> Fields:
    """Start nothing: a page, a prompt or a user may request the agent later."""
    if case.is_alive:
        executor_move = _executor_ready(case)
    else:
        executor_move = _executor_stop(case)
    return {
        "executor_move": executor_move,
        "session_move": _session_settle(case),
        "interrupt_run": case.facts.has_open_run,
        "reason": str(case.assessment.resume_reason),
    }


def mark_stopped(case: Case) -> Fields:
    """Record that nothing runs."""
    return leave_for_later(case) | {"reason": "no longer wanted"}


def leave_without_owner(case: Case) -> Fields:
    """Start nothing: the owner is no longer in the team."""
    return leave_for_later(case) | {"reason": "the session's owner has left the team"}


def back_off(case: Case) -> Fields:
    """Start nothing until the next attempt is due."""
    reason, at = "", case.facts.next_restart_at
    if at:
        reason = f"next try at {at:%H:%M:%S}"
    return leave_for_later(case) | {"reason": reason}


def wait_for_turn(case: Case) -> Fields:
    """Start nothing until its turn in the start queue."""
    return leave_for_later(case) | {"reason": f"waits for its turn: {case.facts.before} before it"}


def give_up(case: Case) -> Fields:
    """Stop restarting it: only a user can."""
    attempts = case.facts.attempts
    started = plural(attempts, "Started once", "Started {} times")
    session_move = None
    if SESSION.allows(case.facts.session_state, "give_up"):
        session_move = "give_up"
    return leave_for_later(case) | {
        "session_move": session_move,
        "session_error_code": str(Reason.GAVE_UP),
        "reason": plural(attempts, "1 start without success", "{} starts without success"),
        "error_message": f"{started} without success. Fix the cause, then try again.",
    }


def resume(case: Case) -> Fields:
    """Resume the agent, after launching its execution again if that is gone."""
    executor_move: str | None = "launch"
    if case.is_alive:
        executor_move = _executor_ready(case)
    return leave_for_later(case) | {
        "executor_move": executor_move,
        "session_move": "start",
        "agent_action": "resume",
        "strategy": case.assessment.strategy,
    }


def start_workspace(case: Case) -> Fields:
    """Start the execution of a session that has no agent."""
    return leave_for_later(case) | {"executor_move": "launch", "agent_action": "start_workspace"}


def start_workspace_not_resumable(case: Case) -> Fields:
    """Start the workspace, and report that the agent cannot be resumed."""
    fields = mark_not_resumable(case)
    if not case.is_alive:
        fields |= {"executor_move": "launch", "agent_action": "start_workspace"}
    return fields


def mark_not_resumable(case: Case) -> Fields:
    """Report that the agent cannot be resumed, and start nothing."""
    reason = case.assessment.cause.resume_reason
    error_code = Reason.NOT_RESUMABLE
    if reason in (Reason.CONTEXT_MISMATCH, Reason.WORKTREE_MISSING):
        error_code = reason
    return leave_for_later(case) | {
        "session_move": _session_fail(case, anew=case.is_unreachable),
        "session_error_code": str(error_code),
        "error_message": REFUSALS.get(reason) or _workspace_error(case, reason) or CANNOT_RESUME,
    }


def _workspace_error(case: Case, reason: Reason) -> str:
    if reason is not Reason.WORKTREE_MISSING:
        return ""
    reported = case.observation.workspace_reason or case.facts.workspace_reason
    return reported or "The session's worktree is gone and cannot be rebuilt."


def mark_workspace_gone(case: Case) -> Fields:
    """Report why nothing can be started; row and token are kept."""
    executor_move = _executor_fail(case, WORKTREE_MISSING)
    message = _workspace_error(case, Reason.WORKTREE_MISSING)
    return leave_for_later(case) | {
        "executor_move": executor_move,
        "session_move": _session_fail(case, anew=executor_move is not None),
        "session_error_code": WORKTREE_MISSING,
        "reason": message,
        "error_message": message,
    }


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``says`` is its sentence in docs/recovery.md."""

    name: str
    when: Callable[[Case], bool]
    then: Callable[[Case], dict[str, Any]]
    says: str


# --- conditions ---


def _is_asleep(case: Case) -> bool:
    """Whether the session was put to sleep and nothing has woken it since."""
    facts = case.facts
    woken = facts.has_queued_prompts or facts.start_in_flight or case.is_agent_working
    return facts.asleep and not woken


def _is_backing_off(case: Case) -> bool:
    # A date more than MAX_CLOCK_SKEW ahead comes from a wrong clock: waiting for it could take forever.
    at = case.facts.next_restart_at
    return case.is_start_wanted and at is not None and case.now < at <= case.now + MAX_CLOCK_SKEW


RULES = (
    Rule(
        "foreign_lease",
        lambda c: c.facts.foreign_lease,
        leave_unchanged("another supervisor holds it", needs_recheck=True),
        "Another supervisor holds a valid lease; the session is left to it.",
    ),
    Rule(
        "other_host",
        lambda c: c.is_unknown and c.observation.reason == OTHER_HOST,
        leave_unchanged(OTHER_HOST),
        "The execution runs on another machine; nothing is written.",
    ),
    Rule(
        "attached",
        lambda c: c.facts.attached and c.observation.observed is not Observed.ALIVE,
        leave_unchanged("its stream lives", needs_recheck=True),
        "Our event stream from it is open, so it counts as alive even if it could not be observed.",
    ),
    Rule(
        "alive_unwanted",
        lambda c: c.is_alive and c.is_unwanted,
        stop_execution,
        "The session is stopped, archived or closed: take a snapshot and stop the execution.",
    ),
    Rule(
        "asleep_but_alive",
        lambda c: _is_asleep(c) and c.is_alive,
        end_asleep_execution,
        "The session was put to sleep, but its execution still runs: end it.",
    ),
    Rule(
        "asleep",
        lambda c: _is_asleep(c) and not c.is_unwanted,
        leave_unchanged("idle"),
        "The session is asleep and stays asleep.",
    ),
    Rule(
        "start_under_way",
        # At boot, a live agent is attached at once instead; its start then finds it running.
        lambda c: c.is_start_under_way and not (c.facts.boot and c.is_agent_alive) and not c.is_unwanted,
        leave_unchanged("a start is under way"),
        "A start is in progress and has time left; wait for it.",
    ),
    Rule(
        "unknown_stopped",
        lambda c: c.is_unknown and c.facts.executor_status in (None, E.STOPPED),
        leave_unchanged("no answer", needs_recheck=True),
        "Nothing should be running, and the execution cannot be observed: check again.",
    ),
    Rule(
        "unread_unwanted",
        lambda c: c.is_unknown and c.observation.reason == LEFT_UNREAD and c.is_unwanted,
        leave_unchanged(LEFT_UNREAD, needs_recheck=True),
        "It is gone and no longer wanted, but what it left cannot be read now: check again.",
    ),
    Rule(
        "unknown_boot",
        lambda c: c.is_unknown and c.facts.boot,
        mark_unreachable,
        "No answer at boot: report it as unreachable, and start or end nothing.",
    ),
    Rule(
        "unknown_again",
        lambda c: c.is_unknown and (c.facts.unknown_before or c.is_unreachable),
        mark_unreachable,
        "No answer twice: report it as unreachable, and start or end nothing. The next answer restores it.",
    ),
    Rule(
        "unknown_first",
        lambda c: c.is_unknown,
        leave_unchanged("no answer", needs_recheck=True),
        "No answer: check again before reporting it.",
    ),
    Rule(
        "alive_no_report",
        lambda c: c.is_alive and c.agent_state is None,
        reattach,
        "agentctl runs but reports no agent state: open its event stream.",
    ),
    Rule(
        "alive_workspace_session",
        lambda c: c.is_alive and not c.facts.has_agent,
        leave_for_later,
        "The session is a workspace without an agent, and it is open: open its event stream.",
    ),
    Rule(
        "alive_same_agent",
        lambda c: c.is_alive and c.is_agent_alive,
        reattach,
        "The agent is still running: reattach and read its journal; send nothing.",
    ),
    Rule(
        "alive_workspace_only",
        lambda c: c.is_alive and c.is_workspace_only and not c.assessment.is_resumable and not c.is_workspace_gone,
        leave_for_later,
        "The user wants the workspace only, and it is open; that the agent cannot be resumed is no error.",
    ),
    Rule(
        "alive_agent_gone_not_resumable",
        lambda c: c.is_alive and not c.assessment.is_resumable,
        start_workspace_not_resumable,
        "The agent is gone and cannot be resumed; the workspace stays open.",
    ),
    Rule(
        "dead_unwanted",
        lambda c: not c.is_alive and c.is_unwanted,
        mark_stopped,
        "It is gone and no longer wanted; record that nothing runs.",
    ),
    Rule(
        "owner_left",
        lambda c: c.is_start_wanted and not c.facts.owner_in_team,
        leave_without_owner,
        "The owner has left the team; the session is not started automatically.",
    ),
    Rule(
        "gave_up",
        lambda c: c.is_start_wanted and c.facts.attempts >= c.facts.max_attempts,
        give_up,
        "Too many starts have failed; only a user can start it again.",
    ),
    Rule("backing_off", _is_backing_off, back_off, "The last start failed, and the next attempt is not due yet."),
    Rule(
        "waits_for_turn",
        lambda c: c.is_start_wanted and c.is_waiting_for_turn,
        wait_for_turn,
        "Too many starts are in progress, or the executor is full; the session waits in the queue.",
    ),
    Rule(
        "alive_agent_gone_resume_now",
        lambda c: c.is_alive and c.is_agent_wanted,
        resume,
        "The agent is gone and the policy restarts it: resume.",
    ),
    Rule(
        "alive_agent_gone_resume_later",
        lambda c: c.is_alive,
        leave_for_later,
        "The agent is gone; it is resumed on request.",
    ),
    Rule(
        "dead_resume_now",
        lambda c: c.is_agent_wanted,
        resume,
        "The execution is gone and the policy restarts it: rebuild the workspace if needed, start, and resume.",
    ),
    Rule(
        "dead_workspace_session",
        lambda c: c.is_workspace_wanted and (not c.facts.has_agent or c.is_workspace_only),
        start_workspace,
        "The session is a workspace without an agent, or wanted as one: open it again.",
    ),
    Rule(
        "dead_not_resumable",
        lambda c: c.is_workspace_wanted,
        start_workspace_not_resumable,
        "The execution is gone, the agent cannot be resumed, and the policy restarts it: start the workspace alone.",
    ),
    Rule(
        "dead_not_resumable_later",
        lambda c: c.is_agent_lost and c.facts.has_agent and not c.is_workspace_only,
        mark_not_resumable,
        "The execution is gone and the agent cannot be resumed: report it; the workspace opens on request.",
    ),
    Rule(
        "dead_workspace_gone",
        lambda c: c.is_workspace_gone and c.does_policy_start,
        mark_workspace_gone,
        "The worktree cannot be restored: report why; the row and the resume token are kept.",
    ),
    Rule("dead_resume_later", lambda _: True, leave_for_later, "The execution is gone; it is started on request."),
)
"""In this order; the first rule that matches decides (docs/recovery.md lists them)."""


_FOREIGN_RULES = frozenset({"foreign_lease", "attached", "start_under_way"})
"""Rules under which marked processes may belong to a working agent; a start ends leftovers itself."""

_DESCRIPTIONS = {rule.name: rule.says for rule in RULES}


def decide(facts: SweepFacts, observation: Observation, now: datetime) -> Decision:
    """Decide what to do about one execution: the first rule that matches, and whether to end leftover processes.

    ``facts`` must be read before the observation: otherwise a start that ends in between looks like a lost agent.
    """
    case = Case(facts, observation, now)
    rule = next(rule for rule in RULES if rule.when(case))
    leftovers = observation.observed is Observed.DEAD and observation.leftovers > 0
    return Decision(
        rule=rule.name,
        observed=observation.observed,
        end_leftovers=leftovers and rule.name not in _FOREIGN_RULES,
        **rule.then(case),
    )


def is_start_decision(decision: Decision) -> bool:
    """Return whether the decision creates a start intent."""
    return decision.agent_action in ("resume", "start_workspace")


def postpone_start(facts: SweepFacts, observation: Observation, now: datetime, *, rank: int, reason: str) -> Decision:
    """Return the decision that replaces a start which has to wait in the queue, at ``rank``."""
    waiting = decide(replace(facts, start_rank=rank, admitted=False), observation, now)
    return replace(waiting, start_rank=rank, wait_reason=reason, before=facts.before)


def _task_state(facts: SweepFacts) -> str:
    if facts.task_archived:
        return "archived"
    if facts.task_closed:
        return "closed"
    return "open"


def _lease_state(facts: SweepFacts) -> str:
    if facts.foreign_lease:
        return "another supervisor's"
    if facts.attached:
        return "attached"
    return "free"


def explain_decision(facts: SweepFacts, observation: Observation, decision: Decision) -> list[tuple[str, str]]:
    """``--explain``: label and value, in the order in which the rules use them."""
    assessment = facts.assessment.without_live_agent
    lines = {
        "observed": f"{observation.observed} {observation.reason}".rstrip(),
        "executor": f"{facts.executor_status or 'none'} {facts.executor_error_code}".rstrip(),
        "session": f"{facts.session_state}, wanted {facts.desired_state}, work {facts.work_state}",
        "task": _task_state(facts),
        "lease": _lease_state(facts),
        "agent": _agent_text(observation),
        "leftovers": str(observation.leftovers),
        "workspace": f"{facts.workspace} {facts.workspace_reason}".rstrip(),
        "resumable": f"row {assessment.row:d}: {assessment.resume_reason}, {assessment.strategy or 'no strategy'}",
        "policy": _policy_text(facts),
        "prompts queued": _yes_or_no(facts.has_queued_prompts),
        "open run": _yes_or_no(facts.has_open_run),
        "start under way": _yes_or_no(facts.start_in_flight),
        "starts": f"{facts.attempts} of {facts.max_attempts}",
        "next start": _next_start_text(facts, decision),
        "rule": f"{decision.rule}: {_DESCRIPTIONS[decision.rule]}",
        "decision": _decision_summary(decision),
    }
    return list(lines.items())


def _agent_text(observation: Observation) -> str:
    if not observation.report:
        return "not reported"
    agent = observation.report["agent"]
    text = str(agent.get("state", "not reported"))
    if agent.get("active_turn"):
        text += ", in a turn"
    return text


def _policy_text(facts: SweepFacts) -> str:
    if facts.boot:
        return f"{facts.policy}, boot"
    return f"{facts.policy}, loop"


def _next_start_text(facts: SweepFacts, decision: Decision) -> str:
    if facts.next_restart_at:
        return facts.next_restart_at.isoformat()
    waits = decision.start_rank is not None or (facts.start_rank is not None and not facts.admitted)
    if not waits:
        return "at once"
    text = f"waits for its turn: {facts.before} before it"
    if decision.wait_reason:
        text += f" ({decision.wait_reason})"
    return text


def _yes_or_no(value: bool) -> str:
    if value:
        return "yes"
    return "no"


def _decision_summary(decision: Decision) -> str:
    parts = []
    if decision.executor_move:
        parts.append(f"executor {decision.executor_move}")
    if decision.session_move:
        parts.append(f"session {decision.session_move} {decision.session_error_code}".strip())
    if decision.agent_action != "none":
        parts.append(f"agent {decision.agent_action} {decision.strategy or ''}".strip())
    if decision.interrupt_run:
        parts.append("interrupt the open run")
    if decision.end_leftovers:
        parts.append("end leftovers")
    if decision.needs_recheck:
        parts.append("check again")
    return "; ".join(parts) or "nothing to do"


FAILED_RESULT: Final = "failed"
OVERTAKEN: Final = "overtaken"
"""``reason`` of a row that another supervisor or a later start has handled."""
REATTACHED: Final = "reattached"
SKIPPED: Final = "skipped"
UNDER_WAY: Final = "under_way"
OPENS_WORKSPACE: Final = "start_workspace"
STARTING_ACTIONS: Final = ("resume", OPENS_WORKSPACE)
"""Decisions whose receipt is written after the sweep."""
_BY_STRATEGY: Final = {"native": "resumed", "history": "injected", "fresh": "fresh"}


def row_result(row: Mapping[str, Any]) -> str:
    """Return the result of a row alone; a start without a receipt is ``under_way``."""
    if row.get("receipt_kind"):
        return str(row["receipt_kind"])
    failed = row.get("session_state") == SessionState.ERROR or bool(row.get("error_message"))
    # An agent that cannot be resumed puts its session in error while the workspace opens; the receipt shows how that
    # went.
    if failed and row.get("rule") != Reason.DAMAGED_ROW and row.get("agent_action") != OPENS_WORKSPACE:
        return FAILED_RESULT
    if row.get("reason") == OVERTAKEN:
        return SKIPPED
    if row.get("agent_action") == "reattach":
        return REATTACHED
    if row.get("agent_action") in STARTING_ACTIONS:
        return UNDER_WAY
    return SKIPPED


def planned_row_result(row: Mapping[str, Any]) -> str:
    """Predict the result of a dry run's row; a native start counts as ``resumed``, but may become ``loaded``."""
    action = row.get("agent_action")
    if action == "resume":
        return _BY_STRATEGY[row["strategy"]]
    if action == "start_workspace":
        return "workspace_only"
    return row_result({**row, "session_state": ""})
