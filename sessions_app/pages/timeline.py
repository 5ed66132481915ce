"""The timeline of a session: its events and sweeps in plain words, with the evidence and a chart."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.domain.recovery import RULES
from sessions_app.domain.situation_facts import Label
from sessions_app.domain.states import SessionState
from sessions_app.models import Prompt, SessionEvent, SweepOutcome, TaskSession
from sessions_app.pages.activity_chart import ActivityChart, draw_activity_chart
from sessions_app.pages.agent_settings import left_out_sentence
from sessions_app.pages.labels import decision_label, humanize_code, receipt_label_in_history
from sessions_app.pages.session_state import evidence_lines
from sessions_app.pages.shortcuts import find_session, queried_number
from sessions_app.services import timeline as story

Payload = Mapping[str, Any]
RULE_SENTENCES: Final[Mapping[str, str]] = {rule.name: rule.says for rule in RULES}
"""Sentence that explains each sweep rule, by the name of the rule."""

_INTERRUPTION_CAUSES: Final[Mapping[str, str]] = {
    "wait_timeout": "Nobody answered in time, so the wait ended",
    "agent_gone": "The agent’s process ended in the middle of the turn",
}
_SETTLEMENT_LABELS: Final[Mapping[str, str]] = {
    "continued": "An unfinished prompt was continued with a new one",
    "resent": "An unfinished prompt was sent again as a new one",
}
_GAP_SENTENCES: Final[Mapping[str, str]] = {
    "new_epoch": "the agent’s journal was started over",
    "lines_missing": "lines of the agent’s journal are missing",
    "database_restored": "the database was restored from an older copy",
    "record_incomplete": "the portable record was incomplete",
}
_RUN_END_SENTENCES: Final[Mapping[str, Label]] = {
    "COMPLETED": Label("The session was closed as completed", "good"),
    "CANCELLED": Label("The session was closed as cancelled", "off"),
    "FAILED": Label("The agent could not be started after several attempts. Press “Try again” to start it", "bad"),
}


def _with_reason(words: str, reason: Any) -> str:
    return f"{words}: {reason}" if reason else words


def _state_label(told: Payload) -> Label:
    to = str(told.get("to", ""))
    if to == SessionState.ERROR:
        return Label(
            _with_reason(
                "Something failed", told.get("error_message") or humanize_code(str(told.get("error_code", "")))
            ),
            "bad",
        )
    return _RUN_END_SENTENCES.get(to, Label(f"The session is {humanize_code(to).lower()} now"))


def _agent_exited_label(told: Payload) -> Label:
    if told.get("expected"):
        return Label("The agent’s process ended as requested", "off")
    code = told.get("exit_code")
    return Label(
        "The agent’s process ended unexpectedly" + (f" (exit status {code})" if code is not None else ""), "bad"
    )


def _waiting_label(told: Payload) -> Label:
    if told.get("wait_kind") == "permission":
        what = "asked a question" if told.get("asks") == "question" else "asked for permission"
        return Label(f"The agent {what} and is waiting", "ask")
    return Label(_with_reason("Waiting for an external result", told.get("reason")), "ask")


def _retrying_label(told: Payload) -> Label:
    tries = f"attempt {told.get('attempt', '?')} of {told.get('of', '?')}"
    return Label(f"The model’s provider had a temporary error, so the turn is retried ({tries})", "ask")


def _cancelled_label(told: Payload) -> Label:
    return Label(_with_reason("The turn was cancelled", humanize_code(str(told.get("reason", "")))), "off")


def _interrupted_label(told: Payload) -> Label:
    reason = str(told.get("reason", ""))
    return Label(
        _INTERRUPTION_CAUSES.get(reason) or _with_reason("The turn was interrupted", humanize_code(reason)), "bad"
    )


def _gap_label(told: Payload) -> Label:
    reason = _GAP_SENTENCES.get(str(told.get("reason", "")), humanize_code(str(told.get("reason", ""))))
    return Label(f"Some of what the agent said may be missing here: {reason}", "bad")


def _setting(told: Payload) -> str:
    """Return a setting and its value in an event; both are the agent's own words."""
    return f"{str(told.get('setting', ''))[:80]} ({str(told.get('value', ''))[:80]})"


_EVENT_LABELS: Final[Mapping[str, Label | Callable[[Payload], Label]]] = {
    "session.state_changed": _state_label,
    "session.agentctl_ready": Label("The workspace is open: files, git, terminal", "calm"),
    "session.agentctl_error": lambda told: Label(
        _with_reason("The workspace failed", told.get("error_message")), "bad"
    ),
    "session.agentctl_stopped": Label("The workspace was stopped; the work in it is kept", "off"),
    "session.agentctl_abandoned": Label("No contact for seven days, so the workspace was closed", "off"),
    "session.agent_exited": _agent_exited_label,
    "session.asleep": Label("The agent was idle, so it was put to sleep. The next prompt wakes it", "off"),
    "session.workspace.delayed": lambda told: Label(
        _with_reason("The latest snapshot could not be transferred yet", told.get("error_message")), "ask"
    ),
    "session.workspace.arrived": Label("The latest snapshot was transferred", "calm"),
    "session.start_waits": lambda told: Label(
        _with_reason("Waiting to start", humanize_code(str(told.get("reason", "")))), "ask"
    ),
    "session.restart_ordered": Label("It restarts automatically", "busy"),
    "session.journal_gap": _gap_label,
    "session.journal_skipped": lambda told: Label(
        f"{told.get('count', 'Some')} damaged lines of the agent’s journal were skipped", "bad"
    ),
    "session.run.started": Label("A turn began", "busy"),
    "session.run.waiting": _waiting_label,
    "session.run.resumed": Label("The wait ended; the turn continued", "busy"),
    "session.run.completed": Label("The turn was completed", "good"),
    "session.run.failed": lambda told: Label(_with_reason("The turn failed", told.get("error_message")), "bad"),
    "session.run.cancelled": _cancelled_label,
    "session.run.interrupted": _interrupted_label,
    "session.run.retrying": _retrying_label,
    "session.run.stalled": Label("The agent has not responded for a while; nothing was stopped", "ask"),
    "session.run.cancel_ignored": Label("The agent was asked to cancel its turn, and continues it", "ask"),
    "session.run.heard_again": Label("The agent responds again", "busy"),
    "session.permission.expired": Label("A request of the agent was closed because its process ended", "off"),
    "session.transcript": lambda told: (
        Label("The agent deleted its own transcript", "off")
        if told.get("deleted")
        else Label(_with_reason("The agent’s own transcript was not deleted", told.get("reason")), "ask")
    ),
    "session.mcp_servers.left_out": lambda told: Label(
        " ".join(map(left_out_sentence, told.get("servers", ()))) or "The agent was not given some MCP servers", "ask"
    ),
    "session.setting.requested": lambda told: Label(f"A change of the agent’s setting {_setting(told)} was requested"),
    "session.setting.applied": lambda told: Label(f"The agent’s setting {_setting(told)} was changed", "calm"),
    "session.setting.refused": lambda told: Label(
        _with_reason(f"The agent refused the setting {_setting(told)}", told.get("reason")), "ask"
    ),
    "session.prompt.held": Label(
        "It is not known whether the agent received a prompt. It is held and not sent again automatically",
        "ask",
    ),
    "session.prompt.interrupted": Label(
        "The prompt of that turn is unfinished and not sent again automatically. You decide",
        "ask",
    ),
    "session.prompt.dismissed": lambda told: Label(
        _SETTLEMENT_LABELS.get(str(told.get("settled_by", "")), "An unfinished prompt was dismissed"), "off"
    ),
    "session.prompt.overdue": Label("A prompt has waited too long for the agent. It stays in the queue", "ask"),
}


def event_label(name: str, payload: Payload) -> Label:
    """Return the label of a log event; for an unknown one, its name in words."""
    found = _EVENT_LABELS.get(name) or Label(humanize_code(name.rpartition(".")[2]).capitalize())
    return found if isinstance(found, Label) else found(payload)


_SWEEP_ACTION_LABELS: Final[Mapping[str, Label]] = {
    "reattach": Label("The agent was still running; reconnected", "good"),
    "resume": Label("The agent had ended, so it is resumed", "ask"),
    "start_workspace": Label("The agent cannot be resumed automatically, so only its workspace is opened", "ask"),
    "stop": Label("It should no longer run, so it is stopped", "off"),
}
_OBSERVATION_LABELS: Final[Mapping[str, str]] = {
    "boot": "The control plane was restarted",
    "command": "A sweep was requested",
    "reconcile": "Regular recovery check",
}


def sweep_outcome_label(outcome: SweepOutcome) -> Label:
    """Return the label of what a sweep found and decided for one session."""
    looked = _OBSERVATION_LABELS.get(outcome.sweep.trigger, "Recovery check")
    word = _SWEEP_ACTION_LABELS.get(outcome.agent_action)
    if word is None:
        return Label(f"{looked}. {rule_sentence(outcome.rule)}", "bad" if outcome.error_message else "calm")
    return Label(f"{looked}. {word.text}.", "bad" if outcome.error_message else word.tone)


def rule_sentence(rule: str) -> str:
    """Return the sentence that explains a sweep rule; for an unknown one, its name in words."""
    return RULE_SENTENCES.get(rule) or f"{humanize_code(rule).capitalize()}."


_HIDDEN_PAYLOAD_KEYS: Final = frozenset(
    {
        "run_id",
        "message_id",
        "receipt_id",
        "change_id",
        "setting",
        "value",
        "permission_id",
        "wait_id",
        "kind",
        "verified",
        "text",
        "asks",
    }
)
"""Payload fields that are not listed: they are internal, or part of the label."""
_EXCERPT_LENGTH: Final = 160
_MIN_CHART_SPAN: Final = timedelta(minutes=1)
"""Minimum time that the chart spans."""


@never_cache
@require_safe
def show_timeline(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show the newest page of the timeline; ``?before=SEQ`` shows what came before that event."""
    session = find_session(request, task_id, session_id)
    return render(request, "timeline.html", timeline_context(session, queried_number(request, "before")))


def timeline_context(session: TaskSession, before: int | None = None) -> dict[str, Any]:
    """Return the entries of one page, newest first, with the chart of the same period."""
    page = story.timeline_page(session, before)
    entries = [_event_entry(event, page) for event in page.events] + [_sweep_entry(one) for one in page.sweeps]
    entries.sort(key=lambda entry: (entry["at"], entry["seq"]), reverse=True)
    return {
        "session": session,
        "task": session.task,
        "entries": _mark_first_of_day(entries),
        "older": page.older,
        "is_past": before is not None,
        "strip": _activity_chart(session, entries, is_newest=before is None),
    }


def _mark_first_of_day(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Set ``day`` on the first entry of each day, and None on the others."""
    day = None
    for entry in entries:
        entry["day"] = entry["at"].date() if entry["at"].date() != day else None
        day = entry["at"].date()
    return entries


def _event_entry(event: SessionEvent, page: story.TimelinePage) -> dict[str, Any]:
    receipt = page.receipts.get(str(event.payload.get("receipt_id", "")))
    prompt = page.prompts.get(str(event.payload.get("message_id", "")))
    told = event.payload if prompt is None else {"settled_by": _replacement_prompts(prompt), **event.payload}
    word = receipt_label_in_history(receipt) if receipt else event_label(event.name, told)
    begins = event.name in ("session.run.started", "session.prompt.held", "session.prompt.interrupted")
    facts = evidence_lines(receipt.evidence) if receipt else []
    shown = {name: value for name, value in event.payload.items() if name not in _HIDDEN_PAYLOAD_KEYS}
    return {
        "at": event.at,
        "seq": event.seq,
        "kind": "receipt" if event.name == "session.receipt" else event.name.split(".")[1],
        "word": word,
        "excerpt": prompt.text[:_EXCERPT_LENGTH] if prompt and begins else "",
        "evidence": [("log line", str(event.seq)), *evidence_lines(shown), *facts],
        "conversation": event.seq if event.name.startswith("session.run.") else None,
        "sweep": None,
    }


def _replacement_prompts(prompt: Prompt) -> str:
    """Return how an unfinished prompt was settled: ``continued``, ``resent``, or empty if a user dismissed it."""
    if prompt.continued_by_id:
        return "continued"
    return "resent" if prompt.resent_as_id else ""


def _sweep_entry(outcome: SweepOutcome) -> dict[str, Any]:
    evidence = [
        ("observed", outcome.observed),
        ("rule", humanize_code(outcome.rule)),
        ("why", rule_sentence(outcome.rule)),
        ("decision", decision_label(outcome.agent_action, outcome.strategy)),
        ("reason", humanize_code(outcome.reason)),
        ("error", outcome.error_message[:300]),
        ("sweep", f"{outcome.sweep.examined} sessions in {outcome.sweep.duration_ms} ms"),
    ]
    return {
        "at": outcome.sweep.started_at,
        "seq": 0,
        "kind": "sweep",
        "word": sweep_outcome_label(outcome),
        "excerpt": "",
        "evidence": [(name, value) for name, value in evidence if value],
        "conversation": None,
        "sweep": outcome.sweep_id,
    }


def _activity_chart(session: TaskSession, entries: list[dict[str, Any]], *, is_newest: bool) -> ActivityChart | None:
    """Return the chart of the period of these entries; None without entries.

    It extends to now if these are the newest entries and a turn is in progress.
    """
    if not entries:
        return None
    since, last = entries[-1]["at"], entries[0]["at"]
    goes_on = is_newest and session.runs.filter(ended_at=None).exists()
    until = max(timezone.now(), last) if goes_on else last
    since = min(since, until - _MIN_CHART_SPAN)
    sweeps = [(entry["at"], entry["word"]) for entry in entries if entry["sweep"]]
    runs = story.runs_between(session, since, until)
    return draw_activity_chart(since, until, runs, story.process_events(session, since, until), sweeps)
