"""Verify resumes: the outcome, how far it is proven, and which conversation a token belongs to."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Literal

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
    """Proof of a receipt's kind."""

    SAME_PROCESS = "same_process"
    REPLAY = "replay"
    FIRST_TURN = "first_turn"
    """A command line agent named this conversation in that turn, or an agent answered a prompt with the history."""
    QUOTED = "quoted"
    """The agent was asked for its last request and quoted ours (``memory_check``)."""
    UNPROVEN = "unproven"
    """The agent reports success, and nothing confirms or contradicts it."""
    AGENT_ECHO = "agent_echo"
    """Written by earlier versions for any completed turn; shown as unproven."""
    NONE = "none"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Kind and proof of one resume."""

    kind: ReceiptKind
    verified: Verified
    contradiction: str | None = None
    """One sentence; set only if the kind is *failed* for ``context_mismatch``."""


_COMPARED_CHARS = 200
"""How much of a prompt is compared: agents replay long texts cut."""
_MIN_QUOTE = 64
"""A shorter replayed text proves nothing by being part of a prompt."""


def fingerprint(token: str) -> str:
    """Return what may be shown of a conversation id: 16 hex digits of its SHA-256, the same as agentctl shows."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def verify_resume(
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
    listed: bool | None = None,
) -> Verdict:
    """Return the verdict on a start that the agent reported as successful.

    Args:
        strategy: The strategy requested: native, history or fresh.
        outcome: What the agent reported.
        replayed: Number of messages that were replayed.
        replayed_user_texts: The last user texts among them, each possibly cut.
        last_completed_text: The user's text of the last completed turn in our journal.
        completed_turns: Number of completed turns in our journal.
        known_to_replay: Agents of this type replay conversations, or this one was seen to.
        names_conversation: The agent names its conversation in each turn.
        injected: The next prompt carries the history.
        listed: The agent lists the conversation; None if that is not known.
    """
    if outcome == "created":
        return _verdict_of_new(strategy, injected)
    contradiction = contradicts(replayed_user_texts, last_completed_text, completed_turns, known_to_replay)
    if contradiction is None and listed is False and not replayed and completed_turns:
        contradiction = "The agent reports success, but it replayed nothing and does not list the conversation."
    if contradiction:
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction)
    kind = ReceiptKind(outcome)
    if replayed > 0 and replayed_user_texts and last_completed_text is not None:
        return Verdict(kind, Verified.REPLAY)
    return Verdict(kind, Verified.PENDING if names_conversation else Verified.UNPROVEN)


def _verdict_of_new(strategy: str, injected: bool) -> Verdict:
    if injected:
        return Verdict(ReceiptKind.INJECTED, Verified.PENDING)
    if strategy == Strategy.NATIVE:
        told = "The agent was asked for its conversation and opened a new one instead."
        return Verdict(ReceiptKind.FAILED, Verified.NONE, told)
    return Verdict(ReceiptKind.FRESH, Verified.NONE)


def accepted_verdict(outcome: Outcome, contradiction: str) -> Verdict:
    """Return the verdict after a user accepts the loaded conversation: the same kind, without proof.

    Only a conversation that was loaded can be accepted. A new one opened in its place stays a failure.
    """
    if outcome == "created":
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction)
    return Verdict(ReceiptKind(outcome), Verified.NONE)


def contradicts(
    replayed_user_texts: Sequence[str], last_completed_text: str | None, completed_turns: int, known_to_replay: bool
) -> str | None:
    """Return why a replay cannot be our journal's conversation; None if it can."""
    if replayed_user_texts:
        if last_completed_text is None or any(shows_text(text, last_completed_text) for text in replayed_user_texts):
            return None
        return "The conversation that the agent loaded does not contain the last completed request."
    if completed_turns and known_to_replay:
        turns = "1 turn was" if completed_turns == 1 else f"{completed_turns} turns were"
        return f"The agent loaded a conversation without messages; {turns} completed in it."
    return None


def shows_text(replayed_text: str, text: str) -> bool:
    """Return whether a replayed user text, possibly wrapped or cut, is ``text``.

    Also decides about a prompt in doubt: if the replay shows it, the agent has received it.
    """
    seen, ours = _normalised(replayed_text), _normalised(text)
    return ours[:_COMPARED_CHARS] in seen or (len(seen) >= _MIN_QUOTE and seen in ours)


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def after_first_turn(
    verdict: Verdict, expected_fingerprint: str, seen_fingerprint: str, *, failed: bool, names_conversation: bool
) -> Verified:
    """Return how a *pending* receipt is verified after the first turn with output, or a failed one.

    Receipts that are not pending keep their proof. Another conversation id neither refutes nor proves anything,
    because some agents fork the conversation when they resume it.
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


MEMORY_CHECK_PREFIX: Final = "check:"
"""Prefix of a memory check's message id; the launch that it checks follows."""
MEMORY_CHECK_PROMPT: Final = (
    "This message checks what you remember after a restart. Quote the last request that you were given before it, "
    "word for word and nothing else. Use no tool and change nothing. If you do not know it, answer only: UNKNOWN"
)
NOT_QUOTED: Final = "The agent was asked for its last request and did not quote it."
_TOO_SHORT: Final = 24
"""A shorter request may occur in any answer by chance, so the whole answer must equal it."""


def quotes_request(answer: str, request: str) -> bool:
    """Return whether the answer to ``MEMORY_CHECK_PROMPT`` quotes the last request of our log."""
    wanted, said = _words(request), _words(answer)
    if not wanted or not said:
        return False
    return said == wanted if len(wanted) < _TOO_SHORT else shows_text(answer, request)


def _words(text: str) -> str:
    """Return the words alone: quotation marks and punctuation do not count."""
    return " ".join(re.findall(r"\w+", text.casefold()))


TOKEN_OF: Final = "token_of"  # noqa: S105  (a key, no secret)
"""Key in ``TaskSession.metadata``: the ``TokenBinding`` of ``executors_running.resume_token``."""
REJECTED_TOKEN_OF: Final = "rejected_token_of"  # noqa: S105
"""The same for ``rejected_resume_token``."""


@dataclass(frozen=True, slots=True)
class TokenBinding:
    """Where a conversation was opened, and so where its token may be used.

    A token is given to no other profile, agent type or directory: the agent might load a conversation other than the
    one on the page, or lose it.
    """

    agent_profile: str
    """Id of the profile."""
    agent_type: str
    directory: str

    def to_json(self) -> dict[str, str]:
        """Return the form stored in the session's metadata."""
        return asdict(self)


def mismatched_fields(kept: Any, now: TokenBinding) -> tuple[str, ...]:
    """Return the fields in which ``now`` differs from the binding of the token; empty if they match or are unknown."""
    if not isinstance(kept, Mapping):
        return ()
    return tuple(name for name, value in now.to_json().items() if value and kept.get(name, value) != value)
