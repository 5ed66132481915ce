"""Inputs and outputs of a sweep's decision: facts, decisions, and the recovery policy in effect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from executors_app.wire.executions import ExecutorStatus, Observation, Observed, WorkspaceState
from executors_app.wire.protocol import ALIVE_AGENT_STATES, AgentState
from sessions_app.kernel.rules.states import TERMINAL_STATES, DesiredState, SessionState, WorkState
from sessions_app.recovery.rules.resumability import Assessment

UNREACHABLE = "unreachable"
"""Error code of execution and session while it is unknown whether the agent runs."""

WORKTREE_MISSING = "worktree_missing"
MAX_CLOCK_SKEW = timedelta(days=1)
"""Times further ahead than this were written by a wrong clock, and nothing waits for them."""
OTHER_HOST = "other_host"
"""Observation reason of an execution that belongs to another machine, from where alone it can be observed."""

AgentAction = Literal["none", "reattach", "resume", "start_workspace", "stop"]


class Policy(StrEnum):
    """Which sessions get their agent back without anyone asking."""

    AUTO = "auto"
    """Every session that should run."""
    WORKING = "working"
    """Sessions that were working or have queued prompts."""
    ON_OPEN = "on_open"
    """Only when someone opens the page or sends a prompt."""
    MANUAL = "manual"
    """Only when someone asks for it."""


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


def policy_wants_agent(policy: str, work_state: str, has_queued_prompts: bool, boot: bool) -> bool:
    """Return whether ``policy`` starts, without a request, an agent that should run and does not.

    A queued prompt counts as a request. Only under ``manual`` at boot, or by command, is it ignored: the main loop
    takes it up in its next pass, so that such a sweep starts nothing.
    """
    match Policy(policy):
        case Policy.AUTO:
            return True
        case Policy.WORKING:
            return has_queued_prompts or work_state == WorkState.WORKING
        case Policy.ON_OPEN:
            return has_queued_prompts
        case Policy.MANUAL:
            return has_queued_prompts and not boot


class PolicySource(StrEnum):
    """Where a recovery policy is set, in order of precedence."""

    SESSION = "session"
    TEAM = "team"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy set in one place; empty and None: not set there."""

    policy: str = ""
    continues: bool | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The recovery policy in effect for a session, and where it comes from."""

    policy: str
    """A value of ``Policy``; another text only in a damaged row."""
    source: PolicySource
    continues: bool
    """Whether interrupted turns are continued automatically, by a continue prompt."""
    continues_source: PolicySource | None
    """None: set nowhere, so it follows from the policy."""


def effective_policy(session: PolicyChoice, team: PolicyChoice, deployment: PolicyChoice) -> EffectivePolicy:
    """Combine the settings of session, team and deployment; the first that is set takes precedence.

    Policy and continuation are resolved independently. Continuation that is set nowhere is on if the policy is
    ``auto``.
    """
    heard = ((PolicySource.SESSION, session), (PolicySource.TEAM, team), (PolicySource.DEPLOYMENT, deployment))
    policy, source = next(((said.policy, who) for who, said in heard if said.policy), ("auto", PolicySource.DEPLOYMENT))
    continues, who = next(((said.continues, who) for who, said in heard if said.continues is not None), (None, None))
    return EffectivePolicy(policy, source, policy == Policy.AUTO if continues is None else continues, who)
