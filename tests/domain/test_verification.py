"""The verification of a start that the agent reported as a success."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl.journal import line_format
from sessions_app.domain.verification import (
    ReceiptKind,
    Verdict,
    Verified,
    after_first_turn,
    fingerprint,
    shows_text,
    verify_resume,
)

ASKED = "Rename the class `Parser` to `Reader` everywhere."
DEFAULTS: dict[str, Any] = {
    "replayed": 0,
    "replayed_user_texts": (),
    "last_completed_text": ASKED,
    "completed_turns": 1,
    "known_to_replay": True,
    "names_conversation": False,
    "injected": False,
}


def verdict(strategy: str, outcome: Any, **changes: Any) -> Verdict:
    return verify_resume(strategy, outcome, **(DEFAULTS | changes))


def loaded(*texts: str, **changes: Any) -> Verdict:
    return verdict("native", "loaded", replayed=len(texts), replayed_user_texts=texts, **changes)


@pytest.mark.parametrize(
    ("said", "kind", "verified"),
    [
        (verdict("native", "resumed", known_to_replay=False), "resumed", "unproven"),
        (verdict("native", "resumed", known_to_replay=False, names_conversation=True), "resumed", "pending"),
        (verdict("native", "resumed", replayed=1, replayed_user_texts=[ASKED]), "resumed", "replay"),
        (loaded("Hello", ASKED), "loaded", "replay"),
        (loaded(ASKED, "and a later one that was interrupted"), "loaded", "replay"),
        (loaded("  rename the CLASS `Parser`\nto `Reader`  everywhere. "), "loaded", "replay"),
        (loaded(f"<context>cwd=/tmp</context> {ASKED}"), "loaded", "replay"),
        (loaded("Hello", last_completed_text=None, completed_turns=0), "loaded", "unproven"),
        (loaded(completed_turns=0, last_completed_text=None), "loaded", "unproven"),
        (loaded(known_to_replay=False), "loaded", "unproven"),
        (loaded(known_to_replay=False, listed=True), "loaded", "unproven"),
        (loaded(completed_turns=0, last_completed_text=None, listed=False), "loaded", "unproven"),
        (loaded(ASKED, listed=False), "loaded", "replay"),
        (verdict("history", "created", injected=True), "injected", "pending"),
        (verdict("history", "created"), "fresh", "none"),
        (verdict("fresh", "created"), "fresh", "none"),
    ],
)
def test_success_has_a_kind_and_a_proof(said: Verdict, kind: str, verified: str) -> None:
    assert (said.kind, said.verified, said.contradiction) == (kind, verified, None)


@pytest.mark.parametrize(
    "said",
    [
        loaded("Hello", "Something else entirely"),
        loaded(),
        loaded(known_to_replay=False, listed=False),
        verdict("native", "loaded", replayed=12),
        verdict("native", "resumed", replayed=1, replayed_user_texts=["Something else entirely"]),
        verdict("native", "created"),
        verdict("native", "created", completed_turns=0, last_completed_text=None),
    ],
    ids=[
        "another conversation",
        "nothing replayed",
        "nothing replayed and not listed",
        "no user message replayed",
        "another conversation resumed",
        "a new conversation instead",
        "a new one though no turn was completed",
    ],
)
def test_contradiction_is_a_failure_with_a_reason(said: Verdict) -> None:
    assert (said.kind, said.verified) == (ReceiptKind.FAILED, Verified.NONE)
    assert said.contradiction is not None
    assert said.contradiction.endswith(".")


LONG = " ".join(f"word{number}" for number in range(200))


@pytest.mark.parametrize(
    ("replayed", "ours", "shown"),
    [
        (LONG, LONG, True),
        (LONG[:100], LONG, True),
        (f"wrapped: {LONG[:400]}", LONG, True),
        (LONG[:20], LONG, False),
        ("word", LONG, False),
        (LONG, "yes", False),
        ("ﬁx it", "fix it", True),
        ("", "fix it", False),
    ],
)
def test_replayed_text_matches_the_stored_one(replayed: str, ours: str, shown: bool) -> None:
    assert shows_text(replayed, ours) is shown


PENDING = Verdict(ReceiptKind.RESUMED, Verified.PENDING)
REATTACHED = Verdict(ReceiptKind.REATTACHED, Verified.SAME_PROCESS)
INJECTED = Verdict(ReceiptKind.INJECTED, Verified.PENDING)


@pytest.mark.parametrize(
    ("before", "expected", "seen", "failed", "named", "after"),
    [
        (PENDING, "aa", "aa", False, True, Verified.FIRST_TURN),
        (PENDING, "aa", "aa", False, False, Verified.UNPROVEN),
        (PENDING, "aa", "bb", False, True, Verified.NONE),
        (PENDING, "", "", False, True, Verified.NONE),
        (PENDING, "aa", "aa", True, True, Verified.NONE),
        (INJECTED, "", "bb", False, False, Verified.FIRST_TURN),
        (REATTACHED, "aa", "bb", False, False, Verified.SAME_PROCESS),
    ],
)
def test_first_turn_settles_a_pending_receipt(
    before: Verdict, expected: str, seen: str, failed: bool, named: bool, after: Verified
) -> None:
    assert after_first_turn(before, expected, seen, failed=failed, names_conversation=named) is after


def test_control_plane_and_agentctl_compute_the_same_fingerprint() -> None:
    for token in ("0195f3a2-6c0f", "surrogate \ud800"):
        assert fingerprint(token) == line_format.token_fingerprint(token)
        assert token not in fingerprint(token)
