"""How a session's page describes its continuity receipts."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.models import ContinuityReceipt, NewEvent, append_events
from sessions_app.pages.labels import receipt_label
from tests.pages.world import World, path_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("kind", "verified", "words"),
    [
        ("reattached", "same_process", "Reattached: the same process (verified)"),
        ("loaded", "replay", "Loaded: the agent replayed its conversation (verified by replay)"),
        (
            "resumed",
            "pending",
            "Resumed: the agent restored its own conversation (not verified yet; the next turn decides)",
        ),
        ("resumed", "first_turn", "Resumed: the agent restored its own conversation (confirmed by its first turn)"),
        ("resumed", "unproven", "Resumed: the agent reports that it has its conversation (unproven)"),
        ("loaded", "unproven", "Loaded: the agent reports that it has its conversation (unproven)"),
        ("injected", "none", "New conversation with the previous history (not verified)"),
        ("workspace_only", "none", "Workspace only: no agent is running"),
        ("fresh", "none", "Started fresh: the agent does not know the earlier conversation"),
        ("failed", "none", "Could not be resumed"),
    ],
)
def test_receipt_is_described_in_plain_words(kind: str, verified: str, words: str) -> None:
    evidence = {"completed_turns": 2}
    assert receipt_label(ContinuityReceipt(kind=kind, verified=verified, evidence=evidence)).text == words


def test_unproven_receipt_has_a_neutral_colour(ada: Client, world: World) -> None:
    session = world.session()
    session.receipts.create(kind="loaded", verified="unproven", evidence={"completed_turns": 2})
    shown = badge(ada.get(path_of(session)).text)
    assert 'class="pill calm"' in shown
    assert "(unproven)" in shown


@pytest.mark.parametrize(
    ("is_first", "said_before", "words"),
    [
        (True, False, "First start"),
        (False, False, "New conversation"),
        (False, True, "Started fresh: the agent does not know the earlier conversation"),
    ],
)
def test_fresh_start_without_a_loss_mentions_no_loss(is_first: bool, said_before: bool, words: str) -> None:
    receipt = ContinuityReceipt(kind="fresh", verified="none")
    assert receipt_label(receipt, is_first=is_first, said_before=said_before).text == words


def badge(html: str) -> str:
    return html[html.index('<dl class="strip"') : html.index("</dl>")]


def test_badge_distinguishes_a_first_start_from_a_loss(ada: Client, world: World) -> None:
    session = world.session()
    session.receipts.create(kind="fresh", evidence={"completed_turns": 0})
    session.runs.create(message_id="m", started_at=timezone.now())
    html = ada.get(path_of(session)).text
    assert "First start" in html
    assert "Continuity" not in badge(html), "nothing was continued"
    session.receipts.create(kind="fresh", evidence={"completed_turns": 0})
    assert "the agent does not know" in badge(ada.get(path_of(session)).text), (
        "a turn that did not complete counts, too"
    )


def test_start_after_one_that_failed_mentions_no_loss_on_any_page(ada: Client, world: World) -> None:
    session = world.session()
    for kind in ("failed", "fresh"):
        receipt = session.receipts.create(kind=kind)
        append_events(session.id, [NewEvent("session.receipt", {"receipt_id": str(receipt.id), "kind": kind})])
    for page in (badge(ada.get(path_of(session)).text), ada.get(f"{path_of(session)}timeline/").text):
        assert "New conversation" in page
        assert "does not know the earlier conversation" not in page
