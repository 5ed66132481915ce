"""The verification of a start that the agent reported as a success."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.wire import token_redaction
from executors_app.wire.replayed_texts import MAX_DIGESTS, proves_receipt, shows_text, text_digest
from sessions_app.recovery.rules.verification import (
    ReceiptKind,
    Replay,
    Request,
    Requests,
    Verdict,
    Verified,
    after_first_turn,
    compare_requests,
    fingerprint,
    verify_resume,
)

LAST_REQUEST = "Rename the class `Parser` to `Reader` everywhere."


def requests_of(*texts: str) -> list[Request]:
    return [Request(text_digest(text), text) for text in texts]


DEFAULTS: dict[str, Any] = {
    "replay": Replay(),
    "requests": Requests(requests_of(LAST_REQUEST)),
    "known_to_replay": True,
    "names_conversation": False,
    "injected": False,
}


def verdict(strategy: str, outcome: Any, **changes: Any) -> Verdict:
    return verify_resume(strategy, outcome, **(DEFAULTS | changes))


def loaded(*texts: str, **changes: Any) -> Verdict:
    return verdict("native", "loaded", replay=Replay(len(texts), texts), **changes)


@pytest.mark.parametrize(
    ("expected", "kind", "verified"),
    [
        (verdict("native", "resumed", known_to_replay=False), "resumed", "unproven"),
        (verdict("native", "resumed", known_to_replay=False, names_conversation=True), "resumed", "pending"),
        (verdict("native", "resumed", replay=Replay(1, [LAST_REQUEST])), "resumed", "replay"),
        (loaded("Hello", LAST_REQUEST), "loaded", "replay"),
        (loaded(LAST_REQUEST, "and a later one that was interrupted"), "loaded", "replay"),
        (loaded("  rename the CLASS `Parser`\nto `Reader`  everywhere. "), "loaded", "replay"),
        (loaded(f"<context>cwd=/tmp</context> {LAST_REQUEST}"), "loaded", "replay"),
        (loaded("Hello", requests=Requests()), "loaded", "unproven"),
        (loaded(requests=Requests()), "loaded", "unproven"),
        (loaded(known_to_replay=False), "loaded", "unproven"),
        (loaded(known_to_replay=False, listed=True), "loaded", "unproven"),
        (loaded(requests=Requests(), listed=False), "loaded", "unproven"),
        (loaded(LAST_REQUEST, listed=False), "loaded", "replay"),
        (verdict("history", "created", injected=True), "injected", "pending"),
        (verdict("history", "created"), "fresh", "none"),
        (verdict("fresh", "created"), "fresh", "none"),
    ],
)
def test_success_has_a_kind_and_a_proof(expected: Verdict, kind: str, verified: str) -> None:
    assert (expected.kind, expected.verified, expected.contradiction) == (kind, verified, None)


@pytest.mark.parametrize(
    "expected",
    [
        loaded("Hello", "Something else entirely"),
        loaded(),
        loaded(known_to_replay=False, listed=False),
        verdict("native", "loaded", replay=Replay(12)),
        verdict("native", "resumed", replay=Replay(1, ["Something else entirely"])),
        verdict("native", "created"),
        verdict("native", "created", requests=Requests()),
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
def test_contradiction_is_a_failure_with_a_reason(expected: Verdict) -> None:
    assert (expected.kind, expected.verified) == (ReceiptKind.FAILED, Verified.NONE)
    assert expected.contradiction is not None
    assert expected.contradiction.endswith(".")


FIRST, SECOND, THIRD = "Write the parser", "Now test it, please", "continue"


def replay_of(*texts: str, shown: int = 20) -> Replay:
    """Return a replay with digests of all texts, and the last ``shown`` of them as texts."""
    return Replay(2 * len(texts), texts[-shown:], [text_digest(text) for text in texts])


@pytest.mark.parametrize(
    ("replayed", "found", "verified"),
    [
        (replay_of(FIRST, SECOND, THIRD), 3, "replay"),
        (replay_of(FIRST, "an interrupted request", SECOND, THIRD), 3, "replay"),
        (Replay(6, [FIRST, SECOND, THIRD]), 3, "replay"),
        (Replay(2, [f"{FIRST} {SECOND}", f"<reminder/> {THIRD}"]), 3, "replay"),
        (replay_of(THIRD), 1, "unproven"),
        (replay_of("Paint the shed", "and the door", THIRD), 1, "unproven"),
        (replay_of(SECOND, FIRST, THIRD), 2, "unproven"),
        (replay_of(FIRST, THIRD, SECOND), 2, "unproven"),
        (replay_of(SECOND, THIRD), 2, "unproven"),
    ],
    ids=[
        "all",
        "and more",
        "texts alone",
        "wrapped and joined",
        "only the last",
        "another conversation with the same last request",
        "another order",
        "the last one earlier",
        "without the first",
    ],
)
def test_replay_proves_a_conversation_only_with_all_its_requests(replayed: Replay, found: int, verified: str) -> None:
    requests = Requests(requests_of(FIRST, SECOND, THIRD))
    result = verdict("native", "loaded", replay=replayed, requests=requests)
    assert result.comparison is not None
    assert (result.verified, result.comparison.found) == (verified, found)
    assert f"{found} of 3 completed requests" in result.comparison.sentence


def test_requests_beyond_the_shown_texts_are_compared_by_their_digests() -> None:
    requests = [f"request number {number}" for number in range(100)]
    assert compare_requests(requests_of(*requests), replay_of(*requests)).is_complete
    assert compare_requests(requests_of(*requests), replay_of(*requests[:10], *requests[11:])).found == 99


def test_requests_that_could_not_be_compared_are_counted() -> None:
    requests = [f"request number {number}" for number in range(25)]
    compared = compare_requests(requests_of(*requests), Replay(50, requests[-20:]))
    assert not compared.is_complete
    assert compared.sentence.endswith("5 others could not be compared")


def test_older_requests_are_compared_without_their_texts() -> None:
    texts = [f"request number {number}" for number in range(100)]
    requests = [*(Request(text_digest(text)) for text in texts[:90]), *requests_of(*texts[90:])]
    assert compare_requests(requests, replay_of(*texts)).is_complete
    assert compare_requests(requests, replay_of(*texts[1:])).found == 99
    without_digests = compare_requests(requests, Replay(2, [" ".join(texts)]))
    assert (without_digests.found, without_digests.compared, without_digests.completed) == (10, 10, 100)


def test_request_of_which_nothing_is_known_proves_nothing() -> None:
    compared = compare_requests([Request(), *requests_of(SECOND)], replay_of(FIRST, SECOND))
    assert (compared.found, compared.compared, compared.completed) == (1, 1, 2)
    result = loaded(SECOND, requests=Requests([*requests_of(FIRST), Request()]))
    assert (result.verified, result.contradiction) == (Verified.UNPROVEN, None)


def test_replay_that_was_reported_in_part_leaves_older_requests_out() -> None:
    texts = [f"request number {number}" for number in range(MAX_DIGESTS + 3)]
    compared = compare_requests(requests_of(*texts), replay_of(*texts[-MAX_DIGESTS:]))
    assert (compared.found, compared.compared, compared.completed) == (MAX_DIGESTS, MAX_DIGESTS, MAX_DIGESTS + 3)


def test_requests_that_share_one_of_the_last_texts_are_found() -> None:
    together = f"{SECOND} {THIRD}"
    replay = Replay(4, [together], [text_digest(FIRST), text_digest(together)])
    assert compare_requests(requests_of(FIRST, SECOND, THIRD), replay).is_complete


def test_repeated_request_must_be_replayed_as_often() -> None:
    assert compare_requests(requests_of(THIRD, THIRD), replay_of(THIRD)).found == 1
    assert compare_requests(requests_of(THIRD, THIRD), replay_of(THIRD, THIRD)).is_complete


@pytest.mark.parametrize(("replayed", "verified"), [((FIRST,), "replay"), (("Hello",), "unproven")])
def test_first_turn_that_was_interrupted_is_proven_by_its_replay(replayed: tuple[str, ...], verified: str) -> None:
    result = verdict(
        "native", "loaded", replay=replay_of(*replayed), requests=Requests(interrupted=requests_of(FIRST)[0])
    )
    assert (result.kind, result.verified) == ("loaded", verified)


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
        assert fingerprint(token) == token_redaction.token_fingerprint(token)
        assert token not in fingerprint(token)


@pytest.mark.parametrize(
    ("replayed", "text", "is_proof"),
    [
        ("continue", "Continue", True),
        ("The conversation so far:\nAgent: done\n\ncontinue", "continue", True),
        ("What happened meanwhile: ...\n\nyes,\ndo it", "yes,\ndo it", True),
        ("The work was interrupted. Continue where it ended.\n\nfix the parser", "continue", False),
        ("You said: ok\n\nnow run the tests", "ok", False),
        ("an algorithm", "go", False),
        ("<request>continue</request>", "continue", False),
        ("context\n\n<request>rename the columns of the table</request>", "rename the columns of the table", True),
    ],
)
def test_short_prompt_is_proven_only_by_a_text_that_ends_with_it(replayed: str, text: str, is_proof: bool) -> None:
    assert proves_receipt(replayed, text) is is_proof
