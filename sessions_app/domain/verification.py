"""What a resume came to, and how far that is proven (rules, section 9).

A load that says success but replays something else is a contradiction: the user decides, the token stays.
One that replays nothing is *unproven*, because agents answer success for conversations that they have lost;
where this agent has been seen to replay, it is a contradiction. An ACP turn names no conversation, so it
proves nothing afterwards. What a turn can prove is *pending* until the first one with output.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sessions_app.domain.resumability import Strategy

Outcome = Literal["resumed", "loaded", "created"]


class ReceiptKind(StrEnum):
    """``kind`` of a continuity receipt."""

    REATTACHED = "reattached"
    RESUMED = "resumed"
    LOADED = "loaded"
    INJECTED = "injected"
    WORKSPACE_ONLY = "workspace_only"
    FRESH = "fresh"
    FAILED = "failed"


class Verified(StrEnum):
    """How the kind of a receipt is proven."""

    SAME_PROCESS = "same_process"
    REPLAY = "replay"
    FIRST_TURN = "first_turn"
    """A command line agent named this conversation in it; or it answered a prompt that carried the history."""
    QUOTED = "quoted"
    """Asked for its last request, the agent quoted ours (``memory_check``)."""
    UNPROVEN = "unproven"
    """The agent reports success, and nothing confirms or contradicts it."""
    AGENT_ECHO = "agent_echo"
    """In receipts of earlier versions, for any completed turn; shown as unproven."""
    NONE = "none"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Kind and proof of one resume."""

    kind: ReceiptKind
    verified: Verified
    contradiction: str | None = None
    """One sentence; set only where the kind is *failed* for ``context_mismatch``."""


REATTACHED = Verdict(ReceiptKind.REATTACHED, Verified.SAME_PROCESS)
WORKSPACE_ONLY = Verdict(ReceiptKind.WORKSPACE_ONLY, Verified.NONE)
NOT_STARTED = Verdict(ReceiptKind.FAILED, Verified.NONE)

_HEAD = 200
"""Characters of a prompt that are looked for: replayed texts arrive cut."""
_ENOUGH = 64
"""A replayed text shorter than this proves nothing by being part of a prompt."""


def fingerprint(token: str) -> str:
    """What may be shown of an agent's conversation id: 16 hex digits of its SHA-256, as agentctl shows it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def verify(
    strategy: str,
    outcome: Outcome,
    *,
    replayed: int,
    replayed_user_texts: Sequence[str],
    last_completed_text: str | None,
    completed_turns: int,
    known_to_replay: bool,
    names_conversation: bool,
    injected: bool,
) -> Verdict:
    """The verdict on a start that the agent called a success.

    Args:
        strategy: What was asked for: native, history or fresh.
        outcome: What the agent answered.
        replayed: Messages that were replayed.
        replayed_user_texts: The last user texts among them, each possibly cut.
        last_completed_text: The user's text of the last completed turn by our journal.
        completed_turns: Completed turns by our journal.
        known_to_replay: This agent replays its conversations: its type is known for it, or it was seen to.
        names_conversation: Each turn of this agent names the conversation that it belongs to.
        injected: History is told with the next prompt.
    """
    if outcome == "created":
        return _created(strategy, injected)
    contradiction = contradicts(replayed_user_texts, last_completed_text, completed_turns, known_to_replay)
    if contradiction:
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction)
    kind = ReceiptKind(outcome)
    if replayed > 0 and replayed_user_texts and last_completed_text is not None:
        return Verdict(kind, Verified.REPLAY)
    return Verdict(kind, Verified.PENDING if names_conversation else Verified.UNPROVEN)


def _created(strategy: str, injected: bool) -> Verdict:
    if injected:
        return Verdict(ReceiptKind.INJECTED, Verified.PENDING)
    if strategy == Strategy.NATIVE:
        told = "The agent was asked for its conversation and opened a new one instead."
        return Verdict(ReceiptKind.FAILED, Verified.NONE, told)
    return Verdict(ReceiptKind.FRESH, Verified.NONE)


def accepted(outcome: Outcome, contradiction: str) -> Verdict:
    """What a user's *go on with the loaded conversation* comes to: the same kind, and proven by nobody.

    Only what was taken up can be accepted: a new conversation in its place stays a failure.
    """
    if outcome == "created":
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction)
    return Verdict(ReceiptKind(outcome), Verified.NONE)


def contradicts(
    replayed_user_texts: Sequence[str], last_completed_text: str | None, completed_turns: int, known_to_replay: bool
) -> str | None:
    """Why a replay cannot be the conversation of our journal; None where it can."""
    if replayed_user_texts:
        if last_completed_text is None or any(shows(text, last_completed_text) for text in replayed_user_texts):
            return None
        return "The conversation that the agent loaded does not hold the last completed request."
    if completed_turns and known_to_replay:
        turns = "1 turn was" if completed_turns == 1 else f"{completed_turns} turns were"
        return f"The agent loaded a conversation without messages; {turns} completed in it."
    return None


def shows(replayed_text: str, text: str) -> bool:
    """Whether a replayed user text, possibly wrapped or cut, is ours; also settles a prompt in doubt (rule 13)."""
    seen, ours = _normalised(replayed_text), _normalised(text)
    return ours[:_HEAD] in seen or (len(seen) >= _ENOUGH and seen in ours)


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def after_first_turn(
    verdict: Verdict, expected_fingerprint: str, seen_fingerprint: str, *, failed: bool, names_conversation: bool
) -> Verified:
    """What the first turn with output, or a failed one, makes of a *pending* receipt; any other stays as it is.

    A new name is no refutation (some agents fork on resume), but no proof either.
    """
    if verdict.verified is not Verified.PENDING:
        return verdict.verified
    if failed:
        return Verified.NONE
    if verdict.kind is ReceiptKind.INJECTED:
        return Verified.FIRST_TURN
    if not expected_fingerprint or expected_fingerprint != seen_fingerprint:
        return Verified.NONE
    return Verified.FIRST_TURN if names_conversation else Verified.UNPROVEN
