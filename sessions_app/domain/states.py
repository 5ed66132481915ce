"""The machines of a session and everything coupled to it: states, and every legal move.

A move that is in no table raises ``IllegalMove`` and changes nothing. The diagrams of the
documents are generated from these tables. Only ``sessions_app.models`` writes a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal

from executors_app.domain import ExecutorStatus


class SessionState(StrEnum):
    """``task_sessions.state``."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING_FOR_INPUT = "WAITING_FOR_INPUT"
    ERROR = "ERROR"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TaskState(StrEnum):
    """``tasks.state``."""

    TODO = "TODO"
    IN_PROGRESS = "IN_PROGRESS"
    REVIEW = "REVIEW"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkState(StrEnum):
    """Whether the session's agent has something to do."""

    IDLE = "idle"
    WORKING = "working"
    DONE = "done"


class DesiredState(StrEnum):
    """What the owner wants of the session."""

    RUNNING = "running"
    STOPPED = "stopped"


class PromptState(StrEnum):
    """The ledger of one prompt (rule 12)."""

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
    """Where a prompt comes from."""

    USER = "user"
    CONTINUE = "continue"
    """Continues an interrupted turn."""
    WAIT = "wait"
    """Carries the result of a wait."""
    RETRY = "retry"
    """Repeats a turn that a transient error of the provider ended."""
    CHECK = "check"
    """Asks a restarted agent for its last request (``memory_check``)."""


class PermissionState(StrEnum):
    """Whether a permission request still waits for its answer."""

    PENDING = "pending"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class RunState(StrEnum):
    """One run of a session."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


TERMINAL_STATES = frozenset({SessionState.COMPLETED, SessionState.CANCELLED})
"""A session in one of these is never started again (FAILED is left by a user's *try again*)."""

ENDED_STATES = TERMINAL_STATES | {SessionState.FAILED}
OPEN_RUN_STATES = frozenset({RunState.RUNNING, RunState.WAITING})
UNSETTLED_PROMPT_STATES = frozenset({PromptState.SENDING, PromptState.ACCEPTED, PromptState.DELIVERED})
"""Prompts that are on their way or at work; a dead agent leaves none of them so."""
OPEN_PROMPT_STATES = UNSETTLED_PROMPT_STATES | {PromptState.QUEUED}
"""Prompts that the agent still has to finish."""


class IllegalMove(Exception):
    """A move that the table of its machine does not hold."""

    def __init__(self, machine: str, state: str, move: str):
        super().__init__(f"{machine}: {move!r} is not possible in state {state!r}")
        self.machine, self.state, self.move = machine, state, move


class Machine:
    """A named table of moves: ``{move: ({states it leaves}, state it leads to)}``."""

    def __init__(self, name: str, moves: Mapping[str, tuple[Iterable[Any], Any]]):
        self.name = name
        self.moves = {move: (frozenset(sources), target) for move, (sources, target) in moves.items()}

    def next_state(self, state: str, move: str) -> Any:
        """The state that ``move`` leads to; IllegalMove where the table has no such line."""
        sources, target = self.moves[move]
        if state not in sources:
            raise IllegalMove(self.name, state, move)
        return target

    def allows(self, state: str, move: str) -> bool:
        """Whether ``move`` is legal in ``state``."""
        return state in self.moves[move][0]

    def edges(self) -> list[tuple[str, str, str]]:
        """Every ``(state, move, next state)``, sorted, for the diagrams."""
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
        "send": ({P.QUEUED, P.SENDING}, P.SENDING),
        "refuse": ({P.SENDING}, P.QUEUED),
        "accept": ({P.QUEUED, P.SENDING, P.ACCEPTED, P.HELD}, P.ACCEPTED),
        "deliver": ({P.SENDING, P.ACCEPTED, P.HELD, P.DELIVERED}, P.DELIVERED),
        "finish": ({P.SENDING, P.ACCEPTED, P.DELIVERED, P.HELD}, P.DONE),
        "hold": ({P.SENDING, P.ACCEPTED}, P.HELD),
        "doubt": ({P.QUEUED, P.SENDING, P.ACCEPTED, P.DELIVERED}, P.HELD),
        "interrupt": ({P.ACCEPTED, P.DELIVERED, P.HELD}, P.INTERRUPTED),
        "dismiss": ({P.HELD, P.INTERRUPTED}, P.DISMISSED),
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
"""Why a task takes no more work; empty: it does."""


def task_state(current: str, sessions: Iterable[str]) -> TaskState:
    """The state of a task that follows from its sessions' (rule 34); only users set DONE and CANCELLED."""
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
