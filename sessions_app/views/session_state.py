"""All that a session's page shows around the conversation, as plain values for its templates."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin
from sessions_app.domain import usage
from sessions_app.domain.resumability import Assessment, Mode, assess_mode
from sessions_app.domain.states import ENDED_STATES, TERMINAL_STATES, DesiredState, PromptState, SessionState
from sessions_app.models import TaskSession
from sessions_app.services import waits
from sessions_app.services.assessment import assess_session, execution_of
from sessions_app.services.errors import BY_CODE, Conflict, NoAgent, TerminalState
from sessions_app.services.intents import GIVEN_UP, RUNNING_ROW
from sessions_app.services.status import session_status
from sessions_app.services.worktrees import can_be_taken_over
from sessions_app.views.asking import permissions_shown, without_keys
from sessions_app.views.banners import WORKSPACE, banner_of, buttons_of, retry_of
from sessions_app.views.sentences import sentence
from sessions_app.views.waits import waits_shown
from sessions_app.views.wording import (
    POLICIES,
    PROMPT_STATES,
    agent_word,
    executor_word,
    receipt_word,
    session_word,
    spelled,
)

RECEIPTS_SHOWN = 8
PARTS = ("strip", "banner", "permissions", "ledger", "refusal", "controls", "waits", "continuity")
"""The templates ``session/<part>.html``; each is replaced as a whole when it changes."""


READER_REFUSAL = "You are a viewer of this team: you can read along, but ask nothing of its agents."


def session_context(session: TaskSession, *, writes: bool = True) -> dict[str, Any]:
    """The values of every part; reads, never writes. Who only reads gets no buttons."""
    context = _context(session)
    return context if writes else context | _without_buttons(context)


def _without_buttons(context: dict[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(("open_run", "can_stop", "can_close", "workspace_button", "retry", "may_wait"))
    asked = without_keys(context["permissions"])
    return {**nothing, "buttons": [], "permissions": asked, "refusal": READER_REFUSAL, "reads_only": True}


def _context(session: TaskSession) -> dict[str, Any]:
    status, execution, assessment = session_status(session), execution_of(session), assess_session(session)
    said = banner_of(session, status, execution, assessment)
    refusal = composer_refusal(session, assessment)
    return {
        "session": session,
        "task": session.task,
        "status": status,
        "word": session_word(status, has_agent=session.has_agent),
        "executor_word": executor_word(
            status["executor_status"],
            execution.status_reason if execution else "",
            error_code=status["error_code"],
            recovering=status["recovering"],
        ),
        "agent_word": agent_word(status),
        "banner": said,
        "sentence": sentence(status),
        "usage": usage.said(session.usage),
        "buttons": buttons_of(said, assessment, takes_over=can_be_taken_over(session)) if said else [],
        "permissions": permissions_shown(session),
        **waits_shown(session, status["wait"]),
        "may_wait": waits.may_begin(session),
        "is_over": _is_over(session),
        "is_closed": session.task.is_over or session.state in TERMINAL_STATES,
        "receipts": _receipts(session),
        "workspace_starts": status["executor_status"] == ExecutorStatus.STARTING,
        "retry": retry_of(execution, assessment),
        "refusal": refusal,
        "open_run": session.runs.filter(ended_at=None, has_process=True).exists(),
        "can_stop": _can_stop(session, execution),
        "can_close": session.state not in ("COMPLETED", "CANCELLED"),
        "workspace_button": _workspace_button(execution, assessment),
        "trusted_only": _trusted_only(session),
        "snapshot_due_since": execution.snapshot_due_since if execution else None,
        **_policy(session, status),
        **_ledger(session),
    }


def _receipts(session: TaskSession) -> list[dict[str, Any]]:
    """The newest receipts in words; whether a fresh one is a loss depends on what was before it."""
    rows = list(session.receipts.all()[: RECEIPTS_SHOWN + 1])
    first_run = session.runs.order_by("started_at").values_list("started_at", flat=True).first()
    first = rows[-1] if 0 < len(rows) <= RECEIPTS_SHOWN else None
    return [
        {
            "receipt": row,
            "word": receipt_word(
                row, is_first=row is first, said_before=first_run is not None and first_run < row.created_at
            ),
            "facts": evidence_facts(row.evidence),
            "reason": spelled(row.reason),
        }
        for row in rows[:RECEIPTS_SHOWN]
    ]


def composer_refusal(session: TaskSession, assessment: Assessment) -> str:
    """Why no prompt can be given, or the empty text; the rule of ``services.intents.prompt``."""
    if session.task.end:
        return str(TerminalState.of_task(session.task.end))
    if session.state == SessionState.FAILED:
        return GIVEN_UP
    if _is_over(session):
        return str(TerminalState())
    if not session.has_agent:
        return str(NoAgent())
    if assessment.row == RUNNING_ROW:
        return ""
    verdict = assess_mode(assessment, Mode.AUTO)
    return "" if verdict.allowed else str(BY_CODE.get(verdict.refusal, Conflict)())


def _is_over(session: TaskSession) -> bool:
    return session.state in ENDED_STATES or session.task.is_over


def wants_start_on_open(status: dict[str, Any]) -> bool:
    """Whether opening the page starts the agent: it should run, and waits for nothing but somebody to look."""
    calm = status["state"] in ("CREATED", "WAITING_FOR_INPUT") and not status["recovering"]
    calm = calm and status["next_restart_at"] is None  # else each look at its page would begin the waits anew
    calm = calm and not status["asleep"] and status["start_wait"] is None  # a prompt wakes it, its turn comes
    return bool(calm and status["needs_resume"] and not status["starting"] and status["policy"] != "manual")


def _can_stop(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    live = execution is not None and execution.status != ExecutorStatus.STOPPED
    return live or (session.desired_state == DesiredState.RUNNING and session.state not in ENDED_STATES)


def _workspace_button(execution: ExecutorRunning | None, assessment: Assessment) -> Any:
    ready = execution is not None and execution.status in (ExecutorStatus.READY, ExecutorStatus.STARTING)
    return WORKSPACE if not ready and assess_mode(assessment, Mode.WORKSPACE_ONLY).allowed else None


def _policy(session: TaskSession, status: dict[str, Any]) -> dict[str, Any]:
    """Which policy holds, the words to choose another by, and when it goes on by itself."""
    still = status["stillness"]
    return {
        "policy_word": POLICIES.get(status["policy"]),
        "policy_choices": [("", "As the team says", not session.policy)]
        + [(key, word.text, key == session.policy) for key, word in POLICIES.items()],
        "still_until": datetime.fromisoformat(still["until"]) if still and still["until"] else None,
    }


def _trusted_only(session: TaskSession) -> bool:
    try:
        return session.executor.trusted_agents_only
    except UnknownPlugin:
        return True


def _ledger(session: TaskSession) -> dict[str, Any]:
    shown = (PromptState.QUEUED, PromptState.SENDING, PromptState.HELD, PromptState.INTERRUPTED)
    rows = list(session.prompts.filter(state__in=shown, resent_as=None, continued_by=None))
    found: dict[str, list[dict[str, Any]]] = {"queue": [], "unsettled": []}
    for row in rows:
        waits = row.state in (PromptState.QUEUED, PromptState.SENDING)
        found["queue" if waits else "unsettled"].append({"prompt": row, "word": PROMPT_STATES[row.state]})
    return {**found, "is_silent": not rows and not session.messages.exists()}


def evidence_facts(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """The evidence of a receipt as lines; what is empty says nothing."""
    plain = {name: value for name, value in evidence.items() if value not in (None, "", {}, [], 0)}
    return [(spelled(name), _plain(value)) for name, value in plain.items()]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{spelled(str(name))} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
