"""State machines of a session and what belongs to it: their states and every legal move.

A move that no table contains raises ``IllegalMove`` and changes nothing. The diagrams in docs/states.md are generated
from these tables. Only ``sessions_app.models`` writes a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from executors_app.wire.executions import ExecutorStatus
from sessions_app.waits.rules.wait_keys import WaitKeyState


class SessionState(StrEnum):
    """Values of ``task_sessions.state``."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING_FOR_INPUT = "WAITING_FOR_INPUT"
    ERROR = "ERROR"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TaskState(StrEnum):
    """Values of ``tasks.state``."""

    TODO = "TODO"
    IN_PROGRESS = "IN_PROGRESS"
    REVIEW = "REVIEW"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkState(StrEnum):
    """Whether the session's agent has work."""

    IDLE = "idle"
    WORKING = "working"
    DONE = "done"


class DesiredState(StrEnum):
    """Whether the owner wants the session to run."""

    RUNNING = "running"
    STOPPED = "stopped"


class PromptState(StrEnum):
    """Delivery of one prompt.

    ``SENDING`` is committed before the prompt is sent, so that a crash in between leaves it in doubt and never sends
    it twice (rule 12 in docs/rules.md).
    """

    QUEUED = "queued"
    SENDING = "sending"
    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    DONE = "done"
    HELD = "held"
    INTERRUPTED = "interrupted"
    DISMISSED = "dismissed"
    WITHDRAWN = "withdrawn"


class PromptKind(StrEnum):
    """Origin of a prompt."""

    USER = "user"
    CONTINUE = "continue"
    """Continues an interrupted turn."""
    WAIT = "wait"
    """Carries the result of a wait."""
    RETRY = "retry"
    """Repeats a turn that a transient error of the provider ended."""
    CHECK = "check"
    """Asks a restarted agent for its last request (``memory_check``)."""


class TurnOrigin(StrEnum):
    """Who began a turn."""

    PROMPT = "prompt"
    """A prompt of a user or a program, or the result of a wait."""
    KANDEV = "kandev"
    """Kandev itself: it continues, retries or checks without a request."""
    AGENT = "agent"
    """The agent, without a prompt."""


_UNASKED_PROMPT_KINDS: Final = frozenset({PromptKind.CONTINUE, PromptKind.RETRY, PromptKind.CHECK})


def turn_origin(kind: str, *, by_user: bool) -> TurnOrigin:
    """Return who begins the turn of a prompt of this kind; ``by_user``: a user asked for it, such as to continue."""
    if kind in _UNASKED_PROMPT_KINDS and not by_user:
        return TurnOrigin.KANDEV
    return TurnOrigin.PROMPT


class RequestKind(StrEnum):
    """What an agent waits for: permission to act, or the answer to a question."""

    PERMISSION = "permission"
    QUESTION = "question"


class QuestionStatus(StrEnum):
    """State of a question, as people see it."""

    PENDING = "pending"
    ANSWERED = "answered"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    """The agent withdrew it."""


class PermissionState(StrEnum):
    """Whether a permission request still waits for an answer."""

    PENDING = "pending"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"
    """Closed without an answer: withdrawn, ended with its turn, or nobody answered in time."""
    EXPIRED = "expired"
    """Its agent ended before it got an answer. A request past its deadline is CANCELLED."""


class RunState(StrEnum):
    """State of one run of a session."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


TERMINAL_STATES = frozenset({SessionState.COMPLETED, SessionState.CANCELLED})
"""States from which a session is never started again. It leaves FAILED only when a user tries again."""

ENDED_STATES = TERMINAL_STATES | {SessionState.FAILED}
OPEN_RUN_STATES = frozenset({RunState.RUNNING, RunState.WAITING})
WAITING_PROMPT_STATES = frozenset({PromptState.QUEUED, PromptState.SENDING})
UNSETTLED_PROMPT_STATES = frozenset({PromptState.SENDING, PromptState.ACCEPTED, PromptState.DELIVERED})
"""Prompts that have been sent and are not finished. When their agent dies, each of them is settled."""
OPEN_PROMPT_STATES = UNSETTLED_PROMPT_STATES | {PromptState.QUEUED}
"""Prompts that the agent has yet to finish."""


class IllegalMove(Exception):
    """A move that the table of its machine does not contain."""

    def __init__(self, machine: str, state: str, move: str):
        super().__init__(f"{machine}: {move!r} is not possible in state {state!r}")
        self.machine, self.state, self.move = machine, state, move


class Machine:
    """A state machine: ``{move: ({states it leaves}, state it leads to)}``."""

    def __init__(self, name: str, moves: Mapping[str, tuple[Iterable[Any], Any]]):
        self.name = name
        self.moves = {move: (frozenset(sources), target) for move, (sources, target) in moves.items()}

    def next_state(self, state: str, move: str) -> Any:
        """Return the state that ``move`` leads to. Raises IllegalMove if the table does not allow it."""
        sources, target = self.moves[move]
        if state not in sources:
            raise IllegalMove(self.name, state, move)
        return target

    def allows(self, state: str, move: str) -> bool:
        """Return whether ``move`` is legal in ``state``."""
        return state in self.moves[move][0]

    def edges(self) -> list[tuple[str, str, str]]:
        """Return every ``(state, move, next state)``, sorted, for the diagrams."""
        return sorted(
            (str(source), move, str(target)) for move, (sources, target) in self.moves.items() for source in sources
        )


S, P, R, E, W = SessionState, PromptState, RunState, ExecutorStatus, WorkState
_LIVE = {S.STARTING, S.RUNNING, S.WAITING_FOR_INPUT, S.ERROR}
_OPEN = _LIVE | {S.CREATED}

SESSION = Machine(
    "session",
    {
        "start": (_OPEN | {S.FAILED}, S.STARTING),
        "ready": (_LIVE, S.WAITING_FOR_INPUT),
        "turn_started": (_LIVE, S.RUNNING),
        "turn_ended": (_LIVE, S.WAITING_FOR_INPUT),
        "interrupt": (_OPEN, S.WAITING_FOR_INPUT),
        "stop": (_OPEN, S.WAITING_FOR_INPUT),
        "fail": (_OPEN, S.ERROR),
        "give_up": (_OPEN, S.FAILED),
        "complete": (_OPEN | {S.FAILED}, S.COMPLETED),
        "cancel": (_OPEN | {S.FAILED}, S.CANCELLED),
    },
)

EXECUTOR = Machine(
    "executor",
    {
        "launch": (set(E), E.STARTING),
        "ready": ({E.STARTING, E.READY, E.ERROR}, E.READY),
        "fail": (set(E), E.ERROR),
        "stop": (set(E), E.STOPPED),
    },
)

WORK = Machine(
    "work",
    {
        "begin": ({W.IDLE, W.WORKING, W.DONE}, W.WORKING),
        "rest": ({W.WORKING, W.IDLE}, W.IDLE),
        "finish": ({W.WORKING, W.IDLE, W.DONE}, W.DONE),
    },
)

PROMPT = Machine(
    "prompt",
    {
        # From SENDING: the command is repeated to the same journal only, which ignores a message_id that it knows.
        "send": ({P.QUEUED, P.SENDING}, P.SENDING),
        # agentctl answered that it did not take the prompt. Without an answer the prompt stays SENDING.
        "refuse": ({P.SENDING}, P.QUEUED),
        # The agent has certainly not taken it into the turn that was running: it is sent as the next prompt.
        "decline": ({P.SENDING, P.ACCEPTED}, P.QUEUED),
        # From HELD, here and below: a journal line that is read later shows that the prompt did arrive.
        "accept": ({P.QUEUED, P.SENDING, P.ACCEPTED, P.HELD}, P.ACCEPTED),
        "deliver": ({P.SENDING, P.ACCEPTED, P.HELD, P.DELIVERED}, P.DELIVERED),
        "finish": ({P.SENDING, P.ACCEPTED, P.DELIVERED, P.HELD}, P.DONE),
        "hold": ({P.SENDING, P.ACCEPTED}, P.HELD),
        # The database was restored from an older copy, so even a queued prompt may have been sent since.
        "doubt": ({P.QUEUED, P.SENDING, P.ACCEPTED, P.DELIVERED}, P.HELD),
        "interrupt": ({P.ACCEPTED, P.DELIVERED, P.HELD}, P.INTERRUPTED),
        "dismiss": ({P.HELD, P.INTERRUPTED}, P.DISMISSED),
        # The continue prompt that settled the interrupted one was withdrawn: its user decides again.
        "reopen": ({P.DISMISSED}, P.INTERRUPTED),
        "withdraw": ({P.QUEUED}, P.WITHDRAWN),
    },
)

RUN = Machine(
    "run",
    {
        "wait": ({R.RUNNING, R.WAITING}, R.WAITING),
        "resume": ({R.RUNNING, R.WAITING}, R.RUNNING),
        "complete": (OPEN_RUN_STATES, R.COMPLETED),
        "fail": (OPEN_RUN_STATES, R.FAILED),
        "cancel": (OPEN_RUN_STATES, R.CANCELLED),
        "interrupt": (OPEN_RUN_STATES, R.INTERRUPTED),
    },
)

MACHINES = (SESSION, EXECUTOR, WORK, PROMPT, RUN)


TaskEnd = Literal["", "archived", "done", "cancelled"]
"""Why a task accepts no more work; empty: it accepts work."""


def task_state(current: str, sessions: Iterable[str]) -> TaskState:
    """Return the state of a task that follows from the states of its sessions.

    Users alone set DONE and CANCELLED, so these two are kept.
    """
    if current in (TaskState.DONE, TaskState.CANCELLED):
        return TaskState(current)
    states = set(sessions)
    if states & {S.STARTING, S.RUNNING}:
        return TaskState.IN_PROGRESS
    if states & {S.WAITING_FOR_INPUT, S.ERROR, S.COMPLETED}:
        return TaskState.REVIEW
    if states == {S.FAILED}:
        return TaskState.FAILED
    return TaskState.TODO


CANCELLED_BY_AGENT: Final = "cancelled_by_agent"
"""Reason of a cancelled run that nobody asked the agent to cancel."""
USER_STOP_REASONS: Final = frozenset({"stopped", "closed"})
"""Reasons of a run whose session a user stopped or closed."""


class DerivedStatus(StrEnum):
    """Derived statuses in order of precedence."""

    INTERRUPTED_STARTUP = "interrupted_startup"
    INTERRUPTED_WAITING = "interrupted_waiting"
    WAITING = "waiting"
    RUNNING = "running"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The newest run of a session; older runs do not matter."""

    state: RunState
    waited: bool = False
    """The run waits, or was waiting when it ended."""
    process_gone: bool = False
    """The agent process that owns the run is gone; always False for external waits, which no process owns."""
    ended_by_user: bool = False
    """A user stopped or closed the session, which interrupted the run."""
    token: WaitKeyState | None = WaitKeyState.ACTIVE
    """Best state among the keys of its wait; None: it has none. Consumed means that an answer is on its way."""


_OPENS_OR_OPENED = frozenset({WaitKeyState.ACTIVE, WaitKeyState.CONSUMED})


def derive_status(run: RunFacts | None) -> DerivedStatus:
    """Return the status that follows from the newest run; ``idle`` without one."""
    if run is None:
        return DerivedStatus.IDLE
    is_open = run.state in OPEN_RUN_STATES
    interrupted = run.state == RunState.INTERRUPTED and not run.ended_by_user
    if (is_open and run.process_gone) or (interrupted and not run.waited):
        return DerivedStatus.INTERRUPTED_STARTUP
    if interrupted or (run.state == RunState.WAITING and run.token not in _OPENS_OR_OPENED):
        return DerivedStatus.INTERRUPTED_WAITING
    if run.state == RunState.WAITING:
        return DerivedStatus.WAITING
    if is_open:
        return DerivedStatus.RUNNING
    return DerivedStatus.IDLE
