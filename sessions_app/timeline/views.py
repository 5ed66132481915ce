"""The timeline of a session: its events and sweeps in plain words, with the evidence and a chart."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.events import EVENT_CLASSES, event_label
from sessions_app.kernel.rules.states import PromptState
from sessions_app.kernel.rules.wording import plural
from sessions_app.models import ContinuityReceipt, Prompt, SessionEvent, SweepOutcome, TaskSession
from sessions_app.pages.labels import decision_label, receipt_label_in_history
from sessions_app.pages.shortcuts import find_session, part_response, queried_number
from sessions_app.prompts.events import PromptDismissed, PromptEdited, PromptInterrupted
from sessions_app.recovery.rules.evidence import evidence_sentences
from sessions_app.recovery.rules.recovery import RULES
from sessions_app.sessions.rules.situation_facts import Label, humanize_code
from sessions_app.sessions.views.session_page import (
    evidence_lines,
)
from sessions_app.starts.events import ReceiptWritten
from sessions_app.timeline.activity_chart import ActivityChart, draw_activity_chart
from sessions_app.timeline.services import TimelinePage, process_events, runs_between, timeline_page
from sessions_app.turns.events import RunEvent

RULE_SENTENCES: Final[Mapping[str, str]] = {rule.name: rule.says for rule in RULES}
"""Sentence that explains each sweep rule, by the name of the rule."""
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
    occasion = _OBSERVATION_LABELS.get(outcome.sweep.trigger, "Recovery check")
    action = _SWEEP_ACTION_LABELS.get(outcome.agent_action)
    if action is None:
        text, tone = f"{occasion}. {rule_sentence(outcome.rule)}", "calm"
    else:
        text, tone = f"{occasion}. {action.text}.", action.tone
    if outcome.error_message:
        tone = "bad"
    return Label(text, tone)


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
_EDIT_SHOWN: Final = 600
"""Characters of the texts before and after an edit that are shown; the template shows no more of any evidence."""
_MIN_CHART_SPAN: Final = timedelta(minutes=1)
"""Minimum time that the chart spans."""


@never_cache
@require_safe
def show_timeline(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show the newest page of the timeline; ``?before=SEQ`` shows what came before that event."""
    session = find_session(request, task_id, session_id)
    return render(request, "timeline/timeline.html", timeline_context(session, queried_number(request, "before")))


def timeline_context(session: TaskSession, before: int | None = None) -> dict[str, Any]:
    """Return the entries of one page, newest first, with the chart of the same period."""
    page = timeline_page(session, before)
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
    previous_day = None
    for entry in entries:
        day = entry["at"].date()
        entry["day"] = None
        if day != previous_day:
            entry["day"] = previous_day = day
    return entries


def _event_entry(event: SessionEvent, page: TimelinePage) -> dict[str, Any]:
    receipt = page.receipts.get(str(event.payload.get("receipt_id", "")))
    prompt = page.prompts.get(str(event.payload.get("message_id", "")))
    declared = EVENT_CLASSES.get(event.name)
    entry = {
        "at": event.at,
        "seq": event.seq,
        "kind": event.name.split(".")[1],
        "label": _event_label(event, receipt, prompt),
        "excerpt": "",
        "evidence": _event_evidence(event, receipt),
        "sentences": evidence_sentences(receipt.evidence) if receipt else [],
        "conversation": None,
        "sweep": None,
    }
    if event.name == ReceiptWritten.name:
        entry["kind"] = "receipt"
    if declared is not None and declared.quotes_prompt and prompt is not None:
        entry["excerpt"] = prompt.text[:_EXCERPT_LENGTH]
    if declared is not None and issubclass(declared, RunEvent):
        entry["conversation"] = event.seq
    return entry


def _event_evidence(event: SessionEvent, receipt: ContinuityReceipt | None) -> list[tuple[str, str]]:
    if event.name == PromptEdited.name:
        return [("log line", str(event.seq)), *_edit_evidence(PromptEdited.read(event.payload))]
    shown = {name: value for name, value in event.payload.items() if name not in _HIDDEN_PAYLOAD_KEYS}
    evidence = [("log line", str(event.seq)), *evidence_lines(shown)]
    if receipt is not None:
        evidence += evidence_lines(receipt.evidence)
    return evidence


def _edit_evidence(edited: PromptEdited) -> list[tuple[str, str]]:
    """Return who edited a prompt and both texts, saying where one of them is cut."""
    old = _beginning_of("old text", edited.old_text, edited.old_length)
    new = _beginning_of("new text", edited.new_text, edited.length)
    return [("version", str(edited.version)), ("by", edited.by), old, new]


def _beginning_of(name: str, text: str, length: int) -> tuple[str, str]:
    """Return a text under its name, or its beginning under a name that says so; ``length`` is that of all of it."""
    if length <= len(text) <= _EDIT_SHOWN:
        return name, text
    return f"{name}, its first {_EDIT_SHOWN} of {max(length, len(text)):,} characters", text[:_EDIT_SHOWN]


def _event_label(event: SessionEvent, receipt: ContinuityReceipt | None, prompt: Prompt | None) -> Label:
    if receipt is not None:
        return receipt_label_in_history(receipt)
    if event.name == PromptDismissed.name and prompt is not None:
        return PromptDismissed.settlement_label(_replacement_prompts(prompt))
    if event.name == PromptInterrupted.name and prompt is not None and prompt.state == PromptState.INTERRUPTED:
        return PromptInterrupted.open_label()
    return event_label(event.name, event.payload)


def _replacement_prompts(prompt: Prompt) -> str:
    """Return how an unfinished prompt was settled, for ``settlement_label``; empty if a user dismissed it."""
    if prompt.continued_by is not None:
        if prompt.continued_by.by_id:
            return "continued"
        return "continued_by_itself"
    if prompt.resent_as_id:
        return "resent"
    return ""


def _sweep_entry(outcome: SweepOutcome) -> dict[str, Any]:
    examined = plural(outcome.sweep.examined, "1 session", "{} sessions")
    evidence = [
        ("observed", outcome.observed),
        ("rule", humanize_code(outcome.rule)),
        ("why", rule_sentence(outcome.rule)),
        ("decision", decision_label(outcome.agent_action, outcome.strategy)),
        ("reason", humanize_code(outcome.reason)),
        ("error", outcome.error_message[:300]),
        ("sweep", f"{examined} in {outcome.sweep.duration_ms} ms"),
    ]
    return {
        "at": outcome.sweep.started_at,
        "seq": 0,
        "kind": "sweep",
        "label": sweep_outcome_label(outcome),
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
    since, until = entries[-1]["at"], entries[0]["at"]
    if is_newest and session.runs.filter(ended_at=None).exists():
        until = max(timezone.now(), until)
    since = min(since, until - _MIN_CHART_SPAN)
    sweeps = [(entry["at"], entry["label"]) for entry in entries if entry["sweep"]]
    runs = runs_between(session, since, until)
    return draw_activity_chart(since, until, runs, process_events(session, since, until), sweeps)


@never_cache
@require_GET
def timeline_updates(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return the newest page of a session's timeline."""
    context = timeline_context(find_session(request, task_id, session_id))
    return part_response("timeline", "timeline/timeline_entries.html", context)
