"""The timeline of a session: what happened to it, in plain words, with the evidence and a picture."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.models import ContinuityReceipt, Prompt, SessionEvent, SweepOutcome, TaskSession
from sessions_app.services import timeline as story
from sessions_app.views.found import find_session
from sessions_app.views.session_state import evidence_facts
from sessions_app.views.strip import Strip, draw
from sessions_app.views.timeline_words import event_words, sweep_words, why
from sessions_app.views.wording import Word, decision_words, receipt_word, spelled

_HIDDEN: Final = frozenset(
    {"run_id", "message_id", "receipt_id", "permission_id", "wait_id", "kind", "verified", "text"}
)
"""Parts of a line that say nothing to a person, or are said in its words."""
_EXCERPT: Final = 160
_AT_LEAST: Final = timedelta(minutes=1)
"""What the picture spans."""


@never_cache
@require_safe
def timeline(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """The newest part of the story; ``?before=SEQ`` shows what was before."""
    session = find_session(request, task_id, session_id)
    return render(request, "timeline.html", timeline_context(session, _before(request)))


def _before(request: HttpRequest) -> int | None:
    given = request.GET.get("before")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise Http404("before is no number")
    return int(given)


def timeline_context(session: TaskSession, before: int | None = None) -> dict[str, Any]:
    """The entries of one page, newest first, and the picture of their time."""
    page = story.page(session, before)
    first = _first_receipt(session)
    entries = [_event_entry(event, page, first) for event in page.events] + [_sweep_entry(one) for one in page.sweeps]
    entries.sort(key=lambda entry: (entry["at"], entry["seq"]), reverse=True)
    return {
        "session": session,
        "task": session.task,
        "entries": _with_days(entries),
        "older": page.older,
        "is_past": before is not None,
        "strip": _strip(session, entries, is_newest=before is None),
    }


def _first_receipt(session: TaskSession) -> uuid.UUID | None:
    """A fresh one is no loss where it is the first."""
    found: uuid.UUID | None = session.receipts.order_by("created_at").values_list("id", flat=True).first()
    return found


def _with_days(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first entry of each day says the day."""
    day = None
    for entry in entries:
        entry["day"] = entry["at"].date() if entry["at"].date() != day else None
        day = entry["at"].date()
    return entries


def _event_entry(event: SessionEvent, page: story.Page, first: uuid.UUID | None) -> dict[str, Any]:
    receipt = page.receipts.get(str(event.payload.get("receipt_id", "")))
    prompt = page.prompts.get(str(event.payload.get("message_id", "")))
    told = event.payload if prompt is None else {"settled_by": _settled_by(prompt), **event.payload}
    word = _receipt(receipt, first) if receipt else event_words(event.name, told)
    begins = event.name in ("session.run.started", "session.prompt.held", "session.prompt.interrupted")
    facts = evidence_facts(receipt.evidence) if receipt else []
    shown = {name: value for name, value in event.payload.items() if name not in _HIDDEN}
    return {
        "at": event.at,
        "seq": event.seq,
        "kind": "receipt" if event.name == "session.receipt" else event.name.split(".")[1],
        "word": word,
        "excerpt": prompt.text[:_EXCERPT] if prompt and begins else "",
        "evidence": [("line of the log", str(event.seq)), *evidence_facts(shown), *facts],
        "conversation": event.seq if event.name.startswith("session.run.") else None,
        "sweep": None,
    }


def _settled_by(prompt: Prompt) -> str:
    """Which new prompt has settled an unfinished one; empty: a person dismissed it."""
    if prompt.continued_by_id:
        return "continued"
    return "resent" if prompt.resent_as_id else ""


def _receipt(receipt: ContinuityReceipt, first: uuid.UUID | None) -> Word:
    return receipt_word(receipt, is_first=receipt.id == first)


def _sweep_entry(outcome: SweepOutcome) -> dict[str, Any]:
    evidence = [
        ("seen", outcome.observed),
        ("rule", spelled(outcome.rule)),
        ("why", why(outcome.rule)),
        ("decision", decision_words(outcome.agent_action, outcome.strategy)),
        ("reason", spelled(outcome.reason)),
        ("error", outcome.error_message[:300]),
        ("looked at", f"{outcome.sweep.examined} in {outcome.sweep.duration_ms} ms"),
    ]
    return {
        "at": outcome.sweep.started_at,
        "seq": 0,
        "kind": "sweep",
        "word": sweep_words(outcome),
        "excerpt": "",
        "evidence": [(name, value) for name, value in evidence if value],
        "conversation": None,
        "sweep": outcome.sweep_id,
    }


def _strip(session: TaskSession, entries: list[dict[str, Any]], *, is_newest: bool) -> Strip | None:
    """The picture of the time of these entries, until now where they are the newest of a session that goes on."""
    if not entries:
        return None
    since, last = entries[-1]["at"], entries[0]["at"]
    goes_on = is_newest and session.runs.filter(ended_at=None).exists()
    until = max(timezone.now(), last) if goes_on else last
    since = min(since, until - _AT_LEAST)
    sweeps = [(entry["at"], entry["word"]) for entry in entries if entry["sweep"]]
    runs = story.runs_between(session, since, until)
    return draw(since, until, runs, story.process_events(session, since, until), sweeps)
