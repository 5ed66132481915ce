"""What the session page shows around the conversation: status, permissions, prompt queue and receipts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import User
from django.db.models import Case, Q, When
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.accounts.authorization import is_isolated, may_operate
from sessions_app.agents.services.agent_setup import agent_fix
from sessions_app.agents.views.agent_settings import agent_settings_context, login_context, wants_login
from sessions_app.confined.client import Failure
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    TERMINAL_STATES,
    DesiredState,
    PermissionState,
    PromptState,
    RequestKind,
    SessionState,
)
from sessions_app.kernel.services.errors import NoAgent, TerminalState, refusal_error
from sessions_app.models import PermissionRequest, TaskSession, WaitKey
from sessions_app.pages.labels import (
    POLICY_LABELS,
    PROMPT_STATE_LABELS,
    agent_label,
    execution_label,
    receipt_label_in_history,
)
from sessions_app.permissions.services import option_name, permission_keys
from sessions_app.permissions.views import question_context
from sessions_app.prompts.services import GIVEN_UP_MESSAGE
from sessions_app.recovery.rules.resumability import Assessment, Mode, Policy, assess_mode
from sessions_app.recovery.services.assessment import assess_session, can_be_taken_over, execution_of
from sessions_app.rendering.operations.tool_calls import TITLE_LIMIT
from sessions_app.rendering.services import Text, render_texts
from sessions_app.sessions.rules.session_status import SessionStatus
from sessions_app.sessions.rules.situation_facts import Code, IdleReason, Situation, SituationFacts, humanize_code
from sessions_app.sessions.rules.situations import situation, status_label
from sessions_app.sessions.services.situations import load_facts
from sessions_app.sessions.services.status import load_status
from sessions_app.sessions.views.session_summary import WORKSPACE, banner_buttons, retry_buttons
from sessions_app.stream.rules import usage
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT, UNKNOWN_ACTION, is_rejection
from sessions_app.stream.views import attached_files, review_context
from sessions_app.turns.models import newest_run
from sessions_app.waits import services as waits
from sessions_app.waits.rules.wait_keys import WaitKeyState
from sessions_app.waits.services import shown_secret
from sessions_app.waits.views import wait_contexts
from sessions_app.workspace.services.workspace_notes import head_sentence, ignored_sentence

AGENT_ENDED_TEXT = "The agent ended before it got an answer, so this request is closed."
EXPIRED_TEXT = "Nobody answered in time, so the request was cancelled."
OVERRULED_TEXT = "A new prompt was sent instead of an answer, so the request was cancelled."


MAX_CARDS: Final = 20
"""Permission requests and questions that a page shows; an agent decides how many there are."""


def permission_contexts(session: TaskSession) -> list[dict[str, Any]]:
    """Return the first open permission requests, and those of the newest run that closed without an answer."""
    rows = _load_requests(session)
    keys = permission_keys(rows)
    calls = _review_contexts(session, rows, {asked.id for asked in rows if asked.size <= 2 * REVIEW_LIMIT})
    contexts = [_permission_context(asked, keys.get(asked.id), calls[asked.id]) for asked in rows]
    return [one for one in contexts if one["asked"].state != "cancelled" or one["closed"] == EXPIRED_TEXT]


def _load_requests(session: TaskSession) -> list[PermissionRequest]:
    """Return the requests of at most ``MAX_CARDS`` cards: the open ones first, then those that are closed."""
    shown = Q(state=PermissionState.PENDING)
    if (run := newest_run(session)) is not None:
        # How a question ended is a message of the conversation.
        closed = Q(run=run, kind=RequestKind.PERMISSION, size__lte=2 * REVIEW_LIMIT)
        shown |= closed & ~Q(state=PermissionState.RESOLVED)
    open_first = Case(When(state=PermissionState.PENDING, then=0), default=1)
    rows = session.permissions.filter(shown).order_by(open_first, "requested_at", "id")[:MAX_CARDS]
    return sorted(rows, key=lambda row: (row.requested_at, row.id))


def _count_hidden(session: TaskSession, shown: Sequence[Mapping[str, Any]]) -> int:
    """Return how many open requests have no card."""
    if len(shown) < MAX_CARDS:
        return 0
    cards = len([card for card in shown if card["asked"].state == PermissionState.PENDING])
    waiting: int = session.permissions.filter(state=PermissionState.PENDING).count()
    return waiting - cards


def _review_contexts(
    session: TaskSession, requests: Sequence[PermissionRequest], small: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return what the cards show of their tool calls, by the id of the request; only ``small`` ones are rendered."""
    to_render = [asked for asked in requests if asked.id in small]
    rendered = render_texts(session, [Text("reviewed_call", {"payload": asked.tool_call}) for asked in to_render])
    described = {asked.id: result for asked, result in zip(to_render, rendered, strict=True)}
    return {
        asked.id: review_context(asked.tool_call, described.get(asked.id, Failure.TOO_EXPENSIVE)) for asked in requests
    }


def _permission_context(asked: PermissionRequest, token: WaitKey | None, call: dict[str, Any]) -> dict[str, Any]:
    """Return one request: its question, key and options, the given answer, or why it is closed."""
    state = token.state(timezone.now()) if token else None
    if token and state is WaitKeyState.CONSUMED:
        given = str((token.first_answer or {}).get("option_id", ""))
    else:
        given = ""
    is_unknown = asked.is_unknown_action
    options = sorted((_option_context(asked, option, given) for option in asked.offered_options), key=_breadth)
    if is_unknown:
        options = _options_of_unknown_action(options)
    return {
        "asked": asked,
        "title": _request_title(asked, is_unknown=is_unknown),
        "unknown_action": UNKNOWN_ACTION if is_unknown else "",
        "can_reject": any(option["rejects"] for option in options),
        "kind": str(asked.tool_call.get("tool_kind") or "")[:TITLE_LIMIT],
        "call": call,
        "question": question_context(asked.question) if asked.question else None,
        "prefix": f"q{asked.id}-",
        # Nobody is offered to allow what the page does not show in full.
        "options": [option for option in options if call["is_whole"] or option["rejects"]],
        "given": given,
        "answered_by": token.consumed_by.get_username() if token and token.consumed_by else "",
        "deadline": token.expires_at if token else None,
        "closed": _closed_reason(asked, state),
        "resume_token": shown_secret(token) or "",
    }


def _option_context(asked: PermissionRequest, option: Mapping[str, Any], given: str) -> dict[str, Any]:
    option_id = option.get("option_id", "")
    return {
        "id": option_id,
        "name": option_name(asked, option_id),
        "kind": str(option.get("kind", "")),
        "effect": _EFFECTS.get(str(option.get("kind", "")), ""),
        "rejects": is_rejection(option),
        "is_main": option.get("kind") == "allow_once",
        "given": bool(given) and option_id == given,
    }


def _request_title(asked: PermissionRequest, *, is_unknown: bool) -> str:
    if is_unknown:
        return "Unknown action"
    return str(asked.tool_call.get("title") or "Unnamed action")[:REVIEW_LIMIT]


def _options_of_unknown_action(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put what rejects first, with the first of it as the main button, and say of all others what they are for."""
    rejecting = [option | {"is_main": False} for option in options if option["rejects"]]
    if rejecting:
        rejecting[0]["is_main"] = True
    others = [
        option | {"is_main": False, "name": f"Unknown action: {option['name']}"}
        for option in options
        if not option["rejects"]
    ]
    return [*rejecting, *others]


_OPTION_ORDER: Final = ("allow_once", "reject_once", "", "reject_always", "allow_always")
"""Order of the options by what they grant: an answer for this time first, a lasting permission last."""
_EFFECTS: Final[Mapping[str, str]] = {
    "allow_always": "The agent allows this from now on and no longer asks. It decides how far that reaches.",
    "reject_always": "The agent rejects this from now on and no longer asks. It decides how far that reaches.",
}
"""What a lasting answer does, in our words: the option's name is the agent's."""


def _breadth(option: Mapping[str, Any]) -> int:
    kind = option["kind"] if option["kind"] in _OPTION_ORDER else ""
    return _OPTION_ORDER.index(kind)


def _closed_reason(asked: PermissionRequest, state: WaitKeyState | None) -> str:
    if asked.state == PermissionState.EXPIRED:
        return AGENT_ENDED_TEXT
    if state:
        return {WaitKeyState.EXPIRED: EXPIRED_TEXT, WaitKeyState.REVOKED: OVERRULED_TEXT}.get(state, "")
    return ""


def without_keys(permissions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the permission requests without keys and options, for a user who may not answer."""
    return [{**permission, "options": [], "resume_token": ""} for permission in permissions]


MAX_RECEIPTS_SHOWN = 8
SESSION_PARTS: Final[Mapping[str, str]] = {
    "strip": "sessions/strip.html",
    "banner": "sessions/banner.html",
    "permissions": "permissions/permissions.html",
    "ledger": "prompts/ledger.html",
    "refusal": "sessions/refusal.html",
    "controls": "sessions/controls.html",
    "waits": "waits/waits.html",
    "continuity": "recovery/continuity.html",
    "agent": "agents/session_agent.html",
    "title": "sessions/title.html",
}
"""The parts of the session page with their templates. Live updates replace each as a whole."""


VIEWER_STEPS: Final[Mapping[Code, str]] = {
    Code.PERMISSION: "A member of the team has to answer.",
    Code.QUESTION: "A member of the team has to answer.",
    Code.WORKING: "",
}
"""The next step of a situation for a viewer, where that of a member would be wrong."""

VIEWER_REFUSAL = "You are a viewer of this team: you can read this conversation, but not send prompts."


def session_context(session: TaskSession, *, writes: bool = True) -> dict[str, Any]:
    """Return the context of all ``SESSION_PARTS``, without buttons and keys unless ``writes``. Never writes."""
    context = _context(session)
    if writes:
        return context
    return context | _without_buttons(context)


def hide_login(user: User, session: TaskSession, context: dict[str, Any]) -> None:
    """Remove the login from the context of a user who may not open a terminal; no query if there is none."""
    fix = context["agent_fix"]
    if (context["login"]["methods"] or (fix and fix["login"])) and not may_operate(user, session):
        context["agent_fix"] = fix and {**fix, "login": ""}
        context["login"] = {**context["login"], "methods": []}


def _without_buttons(context: dict[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(
        (
            *(
                "agent_fix",
                "open_run",
                "can_stop",
                "output_limit",
                "can_close",
                "workspace_button",
                "retry",
                "may_wait",
            ),
            "may_change_settings",
        )
    )
    asked, login = without_keys(context["permissions"]), {**context["login"], "methods": []}
    shown: Situation = context["situation"]
    return {
        **nothing,
        "login": login,
        "situation": replace(shown, next_step=VIEWER_STEPS.get(shown.code, shown.next_step)),
        "buttons": [],
        "permissions": asked,
        "refusal": VIEWER_REFUSAL,
        "reads_only": True,
    }


def _context(session: TaskSession) -> dict[str, Any]:
    status, execution, assessment = load_status(session), execution_of(session), assess_session(session)
    facts = load_facts(session, status, assessment)
    shown = situation(facts)
    refusal = composer_refusal(session, assessment)
    permissions = permission_contexts(session)
    return {
        "session": session,
        "task": session.task,
        "status": status,
        "label": status_label(facts),
        "executor_label": execution_label(
            status.executor_status,
            execution.status_reason if execution else "",
            error_code=status.error_code,
            recovering=status.recovering,
        ),
        "agent_label": agent_label(facts),
        "situation": shown,
        "usage": usage.usage_lines(session.usage),
        **_setup_context(session, shown, facts),
        "buttons": banner_buttons(shown, assessment, takes_over=can_be_taken_over(session)),
        "permissions": permissions,
        "hidden_requests": _count_hidden(session, permissions),
        **wait_contexts(session, status.wait),
        "may_wait": waits.can_begin_wait(session),
        "is_over": _is_over(session),
        "is_closed": session.task.is_over or session.state in TERMINAL_STATES,
        "receipts": _receipt_contexts(session),
        "workspace_starts": status.executor_status == ExecutorStatus.STARTING,
        "retry": retry_buttons(execution, assessment),
        **_process_context(status),
        "refusal": refusal,
        "open_run": session.runs.filter(ended_at=None, has_process=True).exists(),
        "can_stop": _can_stop(session, execution),
        "output_limit": execution.output_limit if execution else "",
        "can_close": session.state not in TERMINAL_STATES,
        "workspace_button": _workspace_button(execution, assessment),
        "trusted_only": not is_isolated(session.executor),
        "head_sentence": head_sentence(session),
        "ignored_sentence": ignored_sentence(session),
        "snapshot_due_since": execution.snapshot_due_since if execution else None,
        "policy_word": POLICY_LABELS.get(status.policy),
        "policy_choices": [("", "Same as the team", not session.policy)]
        + [(key, word.text, key == session.policy) for key, word in POLICY_LABELS.items()],
        **agent_settings_context(session),
        **_prompt_contexts(session),
    }


def _process_context(status: SessionStatus) -> dict[str, Any]:
    """Return the processes that turns have left running, and how many are not listed."""
    processes = [
        {"command": each["command"], "since": datetime.fromisoformat(each["since"])}
        for each in status.background_processes
    ]
    return {
        "background_processes": processes,
        "unlisted_processes": status.background_process_count - len(processes),
    }


def _setup_context(session: TaskSession, shown: Situation, facts: SituationFacts) -> dict[str, Any]:
    """Return what helps with an agent that is missing or logged out, and the progress of a login."""
    refused = shown.code is Code.TURN_FAILED and facts.turn_wants_login
    offers = refused or (shown.code is Code.PROGRAM and wants_login(session))
    is_about_program = refused or shown.code is Code.PROGRAM
    return {
        "agent_fix": agent_fix(session, wants_login=offers) if is_about_program else None,
        "login": login_context(session, offers=offers, is_running=facts.agent_running),
    }


def _receipt_contexts(session: TaskSession) -> list[dict[str, Any]]:
    """Return the newest receipts."""
    return [
        {
            "receipt": row,
            "word": receipt_label_in_history(row),
            "facts": evidence_lines(row.evidence),
            "reason": humanize_code(row.reason),
        }
        for row in session.receipts.with_history()[:MAX_RECEIPTS_SHOWN]
    ]


def composer_refusal(session: TaskSession, assessment: Assessment) -> str:
    """Return why no prompt can be sent, or an empty text, by the rules of ``prompts.services.queue_prompt``."""
    if session.task.end:
        return str(TerminalState.of_task(session.task.end))
    if session.state == SessionState.FAILED:
        return GIVEN_UP_MESSAGE
    if _is_over(session):
        return str(TerminalState())
    if not session.has_agent:
        return str(NoAgent())
    if assessment.is_running:
        return ""
    verdict = assess_mode(assessment, Mode.AUTO)
    if verdict.allowed:
        return ""
    return str(refusal_error(assessment, verdict.refusal))


def _is_over(session: TaskSession) -> bool:
    return session.state in ENDED_STATES or session.task.is_over


def wants_start_on_open(status: SessionStatus) -> bool:
    """Return whether opening the page starts the agent: the policy allows it, and nothing delays the start.

    An agent that the policy keeps stopped is not started by opening its page, and the page shows this.
    """
    if status.state not in (SessionState.CREATED, SessionState.WAITING_FOR_INPUT) or not status.needs_resume:
        return False
    # Something else starts each of these: the sweep, a restart timer, a prompt or free capacity. A start by the page
    # would also reset the back-off.
    delayed = status.recovering or status.next_restart_at or status.asleep or status.start_wait
    idle_reason = status.stillness["reason"] if status.stillness else None
    if delayed or status.starting or idle_reason == IdleReason.OWNER_LEFT:
        return False
    return status.policy in (Policy.AUTO, Policy.ON_OPEN) or idle_reason == IdleReason.NEXT_LOOK


def _can_stop(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    live = execution is not None and execution.status != ExecutorStatus.STOPPED
    return live or (session.desired_state == DesiredState.RUNNING and session.state not in ENDED_STATES)


def _workspace_button(execution: ExecutorRunning | None, assessment: Assessment) -> Any:
    ready = execution is not None and execution.status in (ExecutorStatus.READY, ExecutorStatus.STARTING)
    if not ready and assess_mode(assessment, Mode.WORKSPACE_ONLY).allowed:
        return WORKSPACE
    return None


def _prompt_contexts(session: TaskSession) -> dict[str, Any]:
    shown = (PromptState.QUEUED, PromptState.SENDING, PromptState.HELD, PromptState.INTERRUPTED)
    rows = list(session.prompts.filter(state__in=shown, resent_as=None, continued_by=None))
    found: dict[str, list[dict[str, Any]]] = {"queue": [], "unsettled": []}
    for row in rows:
        waits = row.state in (PromptState.QUEUED, PromptState.SENDING)
        shown_row = {"prompt": row, "word": PROMPT_STATE_LABELS[row.state]}
        shown_row["files"] = attached_files(session, row.attachments)
        found["queue" if waits else "unsettled"].append(shown_row)
    return {**found, "is_silent": not rows and not session.messages.exists()}


def evidence_lines(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the evidence of a receipt as (name, value) texts, without empty values."""
    plain = {name: value for name, value in evidence.items() if value not in (None, "", {}, [], 0)}
    return [(humanize_code(name), _plain_value(value)) for name, value in plain.items()]


def _plain_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{humanize_code(str(name))} {_plain_value(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain_value, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
