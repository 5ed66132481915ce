"""The timeline of a session: events in plain words, sweeps, paging and the activity chart."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.events import event_label
from sessions_app.models import (
    ContinuityReceipt,
    NewEvent,
    RecoverySweep,
    SessionEvent,
    TaskSession,
    Turn,
    append_events,
)
from sessions_app.prompts import services as prompts
from sessions_app.timeline import services as story
from sessions_app.timeline.activity_chart import draw_activity_chart
from sessions_app.timeline.views import rule_sentence
from tests.pages.world import World, asks, first_prompt, ingest_lines, make_sweep, path_of

WORDS: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "session.state_changed",
        {"to": "ERROR", "error_message": "No space left."},
        "Something failed: No space left.",
        "bad",
    ),
    ("session.state_changed", {"to": "COMPLETED"}, "The session was closed as completed", "good"),
    ("session.agent_exited", {"expected": True}, "The agent’s process ended as requested", "off"),
    ("session.agent_exited", {"exit_code": -9}, "The agent’s process ended unexpectedly (signal 9)", "bad"),
    ("session.agentctl_error", {"error_message": "gone"}, "The workspace failed: gone", "bad"),
    ("session.journal_gap", {"reason": "lines_missing"}, "lines of the agent’s journal are missing", "bad"),
    ("session.journal_skipped", {"count": 3}, "3 damaged lines", "bad"),
    ("session.run.interrupted", {"reason": "agent_gone"}, "ended in the middle of the turn", "bad"),
    ("session.run.interrupted", {"reason": "wait_timeout"}, "Nobody answered in time", "bad"),
    ("session.run.interrupted", {"reason": "agent_exited"}, "process ended in the middle of the turn", "bad"),
    ("session.run.interrupted", {"reason": "stopped"}, "because the agent was stopped", "bad"),
    ("session.run.interrupted", {"reason": "a_new_reason"}, "The turn was interrupted: a new reason", "bad"),
    ("session.run.waiting", {"wait_kind": "permission"}, "asked for permission", "ask"),
    ("session.run.waiting", {"wait_kind": "external", "reason": "the build"}, "external result: the build", "ask"),
    ("session.run.retrying", {"attempt": 2, "of": 5}, "retried (attempt 2 of 5)", "ask"),
    ("session.run.cancelled", {"reason": "new_message"}, "The turn was cancelled: new message", "off"),
    ("session.run.resumed", {"reason": ""}, "The wait ended", "busy"),
    ("session.run.resumed", {"reason": "resolved"}, "was answered, and the turn continued", "busy"),
    ("session.run.resumed", {"reason": "result"}, "The external result arrived, and the session continued", "busy"),
    ("session.run.resumed", {"reason": "timeout"}, "Nobody answered in time", "ask"),
    ("session.run.resumed", {"reason": "withdrawn"}, "The agent withdrew its request", "busy"),
    ("session.run.resumed", {"reason": "turn_cancelled"}, "was closed with its turn", "off"),
    (
        "session.prompt.moved",
        {"old_position": 3, "new_position": 1, "by": "ada"},
        "from place 3 to place 1 by ada",
        "calm",
    ),
    ("session.prompt.moved", {"old_position": 3, "new_position": 1}, "from place 3 to place 1", "calm"),
    ("session.prompt.edited", {"by": "ada"}, "A queued prompt was edited by ada", "calm"),
    ("session.prompt.held", {}, "not sent again automatically", "ask"),
    ("session.something.never_seen", {}, "Never seen", "calm"),
]


@pytest.mark.parametrize(("name", "payload", "words", "tone"), WORDS)
def test_log_event_is_described_in_plain_words(name: str, payload: dict[str, Any], words: str, tone: str) -> None:
    label = event_label(name, payload)
    assert words in label.text
    assert label.tone == tone


def test_every_timeline_event_has_words_without_its_payload() -> None:
    for name in story.TIMELINE_EVENTS:
        if name != "session.receipt":
            assert event_label(name, {}).text != name.rpartition(".")[2].replace("_", " ").capitalize()


def test_known_rule_is_explained_and_unknown_rule_is_named() -> None:
    assert rule_sentence("dead_resume_now") != "Dead resume now."
    assert rule_sentence("of_a_later_version") == "Of a later version."


def entries(client: Client, session: TaskSession, query: str = "") -> list[str]:
    """Return the sentences on the page, newest first."""
    html = client.get(f"{path_of(session)}timeline/{query}").text
    sentences = re.findall(r'<li class="entry [^>]*>.*?<p>(.*?)</p>', html, re.DOTALL)
    return [re.sub(r"<[^>]+>", "", one).strip() for one in sentences]


def test_interrupted_and_resumed_turn_is_shown_in_order(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(), {"kind": "agent.exited", "exit_code": -9, "expected": False})
    session.receipts.create(kind="loaded", verified="replay", evidence={"replayed": 4})
    receipt = session.receipts.get()
    write_event(session, "session.receipt", receipt_id=str(receipt.id), kind="loaded")
    shown = entries(ada, session)
    wanted = [
        "Loaded: the agent replayed its conversation (verified by replay).",
        "The agent’s process ended",
        "The agent asked for permission and is waiting.",
        "A turn began.",
    ]
    places = [next(number for number, one in enumerate(shown) if words in one) for words in wanted]
    assert places == sorted(places)
    html = ada.get(f"{path_of(session)}timeline/").text
    assert "“Look at the tests.”" in html
    assert "<dt>replayed</dt><dd>4</dd>" in html
    assert f'href="{path_of(session)}?before=' in html


def test_agent_that_dies_while_a_permission_waits_continues_nothing(ada: Client, world: World) -> None:
    session = world.running_session()
    closed = {"kind": "permission.cancelled", "permission_id": "p1", "reason": "agent_gone"}
    ingest_lines(session, asks(), closed, {"kind": "agent.exited", "exit_code": -9, "expected": False})
    shown = entries(ada, session)
    assert not [one for one in shown if "turn continued" in one or "wait ended" in one]
    assert any("ended in the middle of the turn" in one for one in shown)
    assert not session.events.filter(name="session.run.resumed").exists()


def lose_agent_in_its_turn(session: TaskSession) -> None:
    """Let the agent die after it has received its prompt."""
    ExecutorRunning.objects.update(resume_token="t")
    delivered = {"kind": "prompt.delivered", "message_id": first_prompt(session).message_id}
    ingest_lines(session, delivered, {"kind": "agent.exited", "exit_code": -9, "expected": False})


def test_continuation_by_kandev_asks_nobody_to_decide(ada: Client, world: World) -> None:
    session = world.running_session()
    lose_agent_in_its_turn(session)
    shown = entries(ada, session)
    assert "Kandev asks the agent to continue the unfinished prompt." in shown
    assert not [one for one in shown if "you decide" in one.lower()]


def test_unfinished_prompt_that_nobody_has_settled_asks_for_a_decision(ada: Client, world: World) -> None:
    session = world.running_session()
    TaskSession.objects.update(policy="manual")
    lose_agent_in_its_turn(session)
    assert any("you decide whether to continue it" in one for one in entries(ada, session))
    ada.post(f"{path_of(session)}dismiss/", {"message_id": first_prompt(session).message_id})
    assert not [one for one in entries(ada, session) if "you decide" in one]


def write_event(session: TaskSession, name: str, **payload: Any) -> None:
    with transaction.atomic():
        append_events(session.id, [NewEvent(name, payload)])


def test_sweep_appears_in_order_with_its_finding_and_reason(ada: Client, bob: Client, world: World) -> None:
    session = world.running_session()
    sweep = make_sweep()
    sweep.rows.create(session=session, observed="alive", rule="alive_same_agent", agent_action="reattach")
    shown = entries(ada, session)
    assert shown[0].startswith("The control plane was restarted. The agent was still running; reconnected")
    html = ada.get(f"{path_of(session)}timeline/").text
    assert f'href="/sweeps/{sweep.id}/"' in html
    assert "The agent is still running: reattach and read its journal; send nothing." in html
    assert bob.get(f"{path_of(session)}timeline/").status_code == 404
    assert bob.get(f"{path_of(session)}timeline/live/").status_code == 404


def test_empty_timeline_says_so(ada: Client, world: World) -> None:
    assert "Nothing has happened yet." in ada.get(f"{path_of(world.session())}timeline/").text


def test_long_timeline_is_paginated_without_duplicates(ada: Client, world: World) -> None:
    session = world.running_session()
    begun = timezone.now() - timedelta(hours=2)
    with transaction.atomic():
        append_events(
            session.id,
            [
                NewEvent("session.agent_exited", {"exit_code": n}, at=begun + timedelta(seconds=20 * n))
                for n in range(150)
            ],
        )
    for n in range(7):
        sweep = make_sweep()
        sweep.started_at = begun + timedelta(seconds=400 * n + 10)
        sweep.save()
        sweep.rows.create(session=session, observed="alive", rule="alive_same_agent", agent_action="reattach")
    seen: list[str] = []
    query = ""
    for _ in range(4):
        seen += entries(ada, session, query)
        older = re.search(r'href="(\?before=\d+)">Earlier entries', ada.get(f"{path_of(session)}timeline/{query}").text)
        if not older:
            break
        query = older[1]
    codes = [int(found[1]) for one in seen if (found := re.search(r"exit code (\d+)", one))]
    assert sorted(codes) == list(range(150))
    assert len([one for one in seen if "restarted" in one]) == 7


def test_activity_chart_shows_turns_and_checks_with_a_text_alternative(ada: Client, world: World) -> None:
    session = world.running_session()
    make_sweep(session)
    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
    html = ada.get(f"{path_of(session)}timeline/").text
    assert 'role="img" aria-label="1 turn, 1 recovery check"' in html
    assert re.search(r'<rect class="good" x="[\d.]+" y="36" width="[\d.]+"', html)
    assert re.search(r'<line class="ask" x1="[\d.]+"', html)


def shown_intervals(client: Client, session: TaskSession) -> list[tuple[float, float]]:
    """Return the intervals in which the chart shows a running agent."""
    html = client.get(f"{path_of(session)}timeline/").text
    bars = re.findall(r'<rect class="up" x="([\d.]+)" y="6" width="([\d.]+)"', html)
    return [(float(x), float(x) + float(width)) for x, width in bars]


def write_event_at(session: TaskSession, when: datetime, name: str, **payload: Any) -> None:
    with transaction.atomic():
        append_events(session.id, [NewEvent(name, payload, at=when)])


def test_receipt_settled_after_death_shows_no_living_agent(ada: Client, world: World) -> None:
    session, begun = world.session(), timezone.now() - timedelta(seconds=100)
    receipt = str(session.receipts.create(kind="loaded", verified="pending", created_at=begun).id)
    write_event_at(session, begun, "session.receipt", receipt_id=receipt, kind="loaded", verified="pending")
    write_event_at(session, begun + timedelta(seconds=50), "session.run.interrupted", reason="agentctl_gone")
    write_event_at(
        session, begun + timedelta(seconds=50), "session.receipt", receipt_id=receipt, kind="loaded", verified="none"
    )
    write_event_at(session, begun + timedelta(seconds=100), "session.agentctl_error", error_message="gone")
    assert shown_intervals(ada, session) == [(0.0, 500.0)]


def test_idle_agent_that_a_sweep_found_dead_is_shown_as_dead(ada: Client, world: World) -> None:
    session, begun = world.session(), timezone.now() - timedelta(seconds=100)
    receipt = str(session.receipts.create(kind="loaded", verified="replay", created_at=begun).id)
    write_event_at(session, begun, "session.receipt", receipt_id=receipt, kind="loaded", verified="replay")
    sweep = make_sweep()
    RecoverySweep.objects.update(started_at=begun + timedelta(seconds=25))
    sweep.rows.create(session=session, observed="dead", rule="dead_resume_now", agent_action="resume")
    back = str(session.receipts.create(kind="loaded", verified="replay", created_at=begun).id)
    write_event_at(
        session, begun + timedelta(seconds=75), "session.receipt", receipt_id=back, kind="loaded", verified="replay"
    )
    write_event_at(session, begun + timedelta(seconds=100), "session.agent_exited", exit_code=1)
    assert shown_intervals(ada, session) == [(0.0, 250.0), (750.0, 1000.0)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("continue", "A user continued the unfinished prompt with a new one"),
        ("resend", "A user sent an unfinished prompt again, as a new one"),
        ("dismiss", "An unfinished prompt was dismissed"),
    ],
)
def test_only_a_user_dismissal_is_called_dismissed(how: str, words: str, ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "agent.exited", "exit_code": -9, "expected": False})
    ExecutorRunning.objects.update(resume_token="t")
    message_id = first_prompt(session).message_id
    session.prompts.filter(message_id__startswith="continue:").delete()
    session.prompts.filter(message_id=message_id).update(state="interrupted", continued_by=None)
    SessionEvent.objects.filter(session=session, name="session.prompt.dismissed").delete()
    ada.post(f"{path_of(session)}{how}/", {"message_id": message_id})
    shown = entries(ada, session)
    assert f"{words}." in shown
    assert any("dismissed" in one for one in shown) is (how == "dismiss")


def test_agent_and_user_text_is_escaped(ada: Client, world: World) -> None:
    session = world.session(prompt="<script>alert(1)</script>")
    session.intents.all().delete()
    write_event(session, "session.run.started", message_id=first_prompt(session).message_id)
    write_event(session, "session.agentctl_error", error_message="<img src=x onerror=alert(1)>", other={"<b>": ["<i>"]})
    html = ada.get(f"{path_of(session)}timeline/").text.split("<main")[1]
    for bad in ("<script>alert", "<img src=x", "<b>", "<i>"):
        assert bad not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_query_count_does_not_grow_with_entries(ada: Client, world: World) -> None:
    session = world.running_session()
    counts = []
    for number in (1, 30):
        for n in range(number):
            receipt = ContinuityReceipt.objects.create(session=session, kind="reattached", verified="same_process")
            write_event(session, "session.receipt", receipt_id=str(receipt.id), kind="reattached", n=n)
            make_sweep(session)
        with CaptureQueriesContext(connection) as seen:
            ada.get(f"{path_of(session)}timeline/")
        counts.append(len(seen))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("before", ["x", "-1", "9" * 30, ""])
def test_invalid_position_returns_404(before: str, ada: Client, world: World) -> None:
    assert ada.get(f"{path_of(world.session())}timeline/?before={before}").status_code == 404


def test_long_idle_time_is_compressed_and_labelled() -> None:
    since = timezone.now() - timedelta(days=10)
    until = since + timedelta(days=9)
    turns = [Turn(state="completed", started_at=since, ended_at=since + timedelta(minutes=20))]
    turns.append(Turn(state="interrupted", started_at=until - timedelta(minutes=20), ended_at=until))
    drawn = draw_activity_chart(since, until, turns, [(since, True), (until, False)], [])
    assert {bar.tone for bar in drawn.turns} == {"good", "bad"}
    assert all(float(bar.width) > 350 for bar in drawn.turns), "turns use most of the width"
    assert [bar.title for bar in drawn.breaks] == ["Idle for 9 days"]
    assert drawn.agent[0].x == "0.0"
    assert drawn.summary == "2 turns (1 interrupted), 0 recovery checks"


def test_external_wait_is_no_turn_in_the_chart() -> None:
    since = timezone.now() - timedelta(hours=1)
    until = since + timedelta(minutes=30)
    wait = Turn(state="waiting", has_process=False, started_at=since + timedelta(minutes=10))
    turn = Turn(state="completed", started_at=since, ended_at=since + timedelta(minutes=5))
    drawn = draw_activity_chart(since, until, [wait, turn], [], [])
    assert drawn.summary == "1 turn, 1 wait, 0 recovery checks"
    assert [bar.title.partition(" ")[0] for bar in drawn.turns] == ["Turn", "Wait"]
    assert drawn.turns[1].title.startswith("Wait for an answer from outside: waiting, ")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x" * 600, "<dt>new text</dt>"),
        ("x" * 601, "<dt>new text, its first 600 of 601 characters</dt>"),
        ("x" * 5000, "<dt>new text, its first 600 of 5,000 characters</dt>"),
    ],
)
def test_edit_says_where_its_texts_are_cut(ada: Client, world: World, text: str, name: str) -> None:
    session = world.running_session()
    prompts.queue_prompt(session.id, "one", "do it", world.ada)
    prompts.edit_prompt(session.id, "one", text, world.ada, version=1)
    html = ada.get(f"{path_of(session)}timeline/").text
    assert name in html
    assert f"<dd>{'x' * 600}</dd>" in html
    assert "<dt>old text</dt><dd>do it</dd>" in html
