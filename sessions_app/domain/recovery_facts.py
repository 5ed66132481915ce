"""The vocabulary of a sweep: facts, decisions and recovery policies, and which policy holds for a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Literal

from executors_app.agentctl.protocol import ALIVE_AGENT_STATES, AgentState
from executors_app.domain import ExecutorStatus, Observation, Observed, WorkspaceState
from sessions_app.domain.resumability import Assessment
from sessions_app.domain.states import TERMINAL_STATES, DesiredState, SessionState, WorkState

UNREACHABLE = "unreachable"
"""Error code of executor and session while nobody knows whether the agent lives."""

WORKTREE_MISSING = "worktree_missing"
MAX_CLOCK_SKEW = timedelta(days=1)
"""Nothing waits for a moment further ahead than that: a wrong clock has written it."""
OTHER_HOST = "other_host"
"""Observation reason of a row that belongs to another machine (rule 2)."""

AgentAction = Literal["none", "reattach", "resume", "start_workspace", "stop"]


class Policy(StrEnum):
    """Which sessions get their agent back without being asked for."""

    AUTO = "auto"
    """All that should run."""
    WORKING = "working"
    """Those that were at work or have prompts queued."""
    ON_OPEN = "on_open"
    """When somebody opens the page or prompts."""
    MANUAL = "manual"
    """When somebody says so."""


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """One session and its execution, as the rows tell it when a sweep looks."""

    session_id: str
    task_id: str
    execution_id: str
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
    """With the workspace as it was just observed; ``as_dead`` or not makes no difference."""
    workspace: WorkspaceState
    workspace_reason: str
    has_open_run: bool
    """A run of the agent that has no end; a wait for the outside is none."""
    has_queued_prompts: bool
    known_launch_id: str | None
    """Launch of the agent that the row believes in."""
    started_at: datetime | None
    """When ``starting`` began."""
    start_in_flight: bool
    """A start intent is not done yet."""
    foreign_lease: bool
    """Another supervisor holds a fresh lease."""
    boot: bool
    """A sweep at boot or by command; False in the loop."""
    unknown_before: bool
    """The loop's last look came to *unknown* too."""
    asleep: bool
    """Put to sleep for idleness: executor stopped, reason ``idle``."""
    attached: bool
    """We hold its event stream, and the stream lives."""
    attempts: int
    """Starts since the last success (rule 33)."""
    next_restart_at: datetime | None
    owner_in_team: bool
    max_attempts: int = 5
    start_timeout: timedelta = timedelta(seconds=300)
    workspace_only: bool = False
    """A user asked for the workspace without an agent, and has not prompted since."""
    has_agent: bool = True
    """False: a workspace, which gets none whatever happens."""
    start_rank: int | None = None
    """Its place among those that wait to be started; None: it does not wait."""
    admitted: bool = False
    """Its turn to be started has come."""
    before: int = 0
    """How many have their turn before it, as far as a sweep has counted them."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a sweep does about one execution; moves are names of the tables in ``states``.

    The order of carrying out: end leftovers, drain the journal, then the moves (a move that has come
    true by the draining is nothing to do), then the agent's action.
    """

    rule: str
    observed: Observed
    executor_move: str | None = None
    session_move: str | None = None
    session_error_code: str = ""
    """For ``fail`` and ``give_up``; with executor ``fail`` the executor's as well."""
    agent_action: AgentAction = "none"
    strategy: str | None = None
    """Of ``resume``."""
    needs_resume: bool = False
    """Left for later, and can be had then."""
    reason: str = ""
    error_message: str = ""
    """For people, with ``session_error_code``."""
    interrupt_run: bool = False
    """The open run's process is gone: if the drained journal has not ended it, it was interrupted."""
    end_leftovers: bool = False
    """End what outlived its agentctl, before anything else."""
    restore: bool = False
    """Was ``unreachable`` and answers again: the error goes."""
    needs_recheck: bool = False
    """The next pass should look whether or not the row claims to run."""
    start_rank: int | None = None
    """From now on it waits for its turn to be started, at this place."""
    wait_reason: str = ""
    """``admission.WaitReason`` of that."""
    before: int = 0
    """How many have their turn before it."""

    @property
    def is_noop(self) -> bool:
        """Nothing to write and nothing to do: the loop stores no outcome."""
        moves = self.executor_move or self.session_move
        deeds = self.interrupt_run or self.end_leftovers or self.restore or self.start_rank is not None
        return not moves and not deeds and self.agent_action == "none"


@dataclass(frozen=True)
class Case:
    """Facts and observation together, and what simply follows from them."""

    facts: SweepFacts
    observation: Observation
    now: datetime

    @cached_property
    def is_alive(self) -> bool:
        """It answered; that a living stream counts too (rule 3) is a rule of its own."""
        return self.observation.observed is Observed.ALIVE

    @cached_property
    def is_unknown(self) -> bool:
        """Neither alive nor proven dead: nothing destructive follows from it."""
        return self.observation.observed is Observed.UNKNOWN

    @cached_property
    def agent_state(self) -> str | None:
        """``agent.state`` of the report; None without a report."""
        report = self.observation.report
        return str(report["agent"]["state"]) if report else None

    @cached_property
    def is_agent_alive(self) -> bool:
        """The agent process is the one that was started, and lives."""
        return self.agent_state in ALIVE_AGENT_STATES

    @cached_property
    def is_agent_working(self) -> bool:
        """The agent owns a turn."""
        report = self.observation.report
        in_turn = bool(report and report["agent"].get("active_turn"))
        return self.agent_state == AgentState.WORKING or (self.is_agent_alive and in_turn)

    @cached_property
    def is_unwanted(self) -> bool:
        """Stopped, archived, closed or terminal."""
        facts = self.facts
        stopped = facts.desired_state == DesiredState.STOPPED or facts.session_state in TERMINAL_STATES
        return stopped or facts.task_archived or facts.task_closed

    @cached_property
    def is_start_under_way(self) -> bool:
        """Somebody is starting it, and still has time for that."""
        facts = self.facts
        began = facts.started_at
        overdue = began is not None and not self.now - facts.start_timeout <= began <= self.now + MAX_CLOCK_SKEW
        by_row = facts.executor_status == ExecutorStatus.STARTING and not facts.boot and facts.started_at is not None
        return (facts.start_in_flight or by_row) and not overdue

    @cached_property
    def assessment(self) -> Assessment:
        """Whether and how it could be resumed now."""
        return self.facts.assessment.without_live_agent

    @cached_property
    def is_workspace_gone(self) -> bool:
        """The worktree can neither be found nor rebuilt."""
        return WorkspaceState.GONE in (self.facts.workspace, self.observation.workspace)

    @cached_property
    def does_policy_start(self) -> bool:
        """The policy starts something of this session without being asked for; what, is another question."""
        facts = self.facts
        if not facts.has_agent:
            return facts.policy != Policy.MANUAL
        return policy_wants_agent(facts.policy, facts.work_state, facts.has_queued_prompts, facts.boot)

    @cached_property
    def is_workspace_only(self) -> bool:
        """Its user wants the workspace without an agent, and has not prompted since."""
        return self.facts.workspace_only and not self.facts.has_queued_prompts

    @cached_property
    def does_policy_want_agent(self) -> bool:
        """The policy gives this session its agent back without being asked for."""
        return self.does_policy_start and not self.is_workspace_only

    @cached_property
    def has_given_up(self) -> bool:
        """FAILED is left by a user's *try again* alone."""
        return self.facts.session_state == SessionState.FAILED

    @cached_property
    def is_agent_wanted(self) -> bool:
        """It can be resumed without asking anybody, and the policy says now."""
        can = self.assessment.needs_resume and self.assessment.strategy is not None
        place = self.is_alive or not self.is_workspace_gone
        return can and place and self.does_policy_want_agent and not self.has_given_up

    @cached_property
    def is_agent_lost(self) -> bool:
        """It is gone, its agent cannot come back, its workspace can."""
        lost = not self.assessment.is_resumable and not self.has_given_up
        return lost and not self.is_alive and not self.is_workspace_gone

    @cached_property
    def is_workspace_wanted(self) -> bool:
        """Its agent cannot come back, its workspace can, and the policy says now."""
        return self.is_agent_lost and self.does_policy_start

    @cached_property
    def is_start_wanted(self) -> bool:
        """This pass would start something, were there no brake."""
        return self.is_agent_wanted or self.is_workspace_wanted

    @cached_property
    def is_waiting_for_turn(self) -> bool:
        """It has a place among those that wait to be started."""
        return self.facts.start_rank is not None and not self.facts.admitted

    @cached_property
    def is_unreachable(self) -> bool:
        """An earlier look gave it up as unreachable."""
        facts = self.facts
        return facts.executor_status == ExecutorStatus.ERROR and facts.executor_error_code == UNREACHABLE


def policy_wants_agent(policy: str, work_state: str, has_queued_prompts: bool, boot: bool) -> bool:
    """Whether ``policy`` starts an agent that should run and does not, without anybody asking.

    A queued prompt is somebody asking, under every policy but ``manual`` in a sweep at boot or by
    command: there the loop's next pass gives it its turn, so that such a sweep starts nothing at all.
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
    """Whose word counts, the nearest first."""

    SESSION = "session"
    TEAM = "team"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What one of them says; the empty text and None: nothing."""

    policy: str = ""
    continues: bool | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What holds."""

    policy: str
    """A word of ``Policy``, but for a damaged row's."""
    source: PolicySource
    continues: bool
    """Whether interrupted work is continued by itself (rule 16)."""
    continues_source: PolicySource | None
    """None: nobody says, so it follows from the policy."""


def effective_policy(session: PolicyChoice, team: PolicyChoice, deployment: PolicyChoice) -> EffectivePolicy:
    """The nearest word counts, for each of the two by itself; continuing is on where the policy is auto."""
    heard = ((PolicySource.SESSION, session), (PolicySource.TEAM, team), (PolicySource.DEPLOYMENT, deployment))
    policy, source = next(((said.policy, who) for who, said in heard if said.policy), ("auto", PolicySource.DEPLOYMENT))
    continues, who = next(((said.continues, who) for who, said in heard if said.continues is not None), (None, None))
    return EffectivePolicy(policy, source, policy == Policy.AUTO if continues is None else continues, who)
