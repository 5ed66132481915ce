"""Verify resumes: the outcome, how far it is proven, and which conversation a token belongs to."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

from executors_app.machine.costly_work import begin_costly_work
from executors_app.wire.replayed_texts import (
    MAX_DIGESTS,
    MAX_TEXTS,
    find_text,
    normalise_text,
    proves_receipt,
    shows_text,
    text_digest,
)
from sessions_app.kernel.rules.wording import plural
from sessions_app.recovery.rules.resumability import Strategy

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
    NONE = "none"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Kind and proof of one resume."""

    kind: ReceiptKind
    verified: Verified
    contradiction: str | None = None
    """One sentence; set only if the kind is *failed* for ``context_mismatch``."""
    comparison: Comparison | None = None
    """How the replay was compared with our log; None if there was nothing to compare."""


def fingerprint(token: str) -> str:
    """Return what may be shown of a conversation id: 16 hex digits of its SHA-256, the same as agentctl shows."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Replay:
    """What an agent replayed of the user's requests."""

    messages: int = 0
    """Number of messages of user and agent."""
    texts: Sequence[str] = ()
    """The last user texts, each possibly cut."""
    digests: Sequence[str] = ()
    """Digests of all user texts, whole, at most the last ``MAX_DIGESTS``; empty if the driver reports none."""

    @property
    def count(self) -> int:
        """Number of user texts that are known in some way."""
        return max(len(self.digests), len(self.texts))

    @property
    def is_whole(self) -> bool:
        """Whether no earlier user text was left out of the report."""
        return self.count < (MAX_DIGESTS if self.digests else MAX_TEXTS)


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of the user's text of one turn; nothing, of some turns that release 1.0.0 has recorded."""

    digest: str | None = None
    text: str | None = field(default=None, repr=False)
    """None also for an older turn, of which the digest is enough."""

    def is_comparable(self, replay: Replay) -> bool:
        """Whether a replay would show it if it was in the conversation."""
        return self.text is not None or (self.digest is not None and bool(replay.digests))


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests that the agent's conversation should contain, from the rows of its turns."""

    completed: Sequence[Request] = ()
    """Of each completed turn, oldest first."""
    interrupted: Request | None = None
    """Of the last interrupted turn. The agent may have lost it, so that a replay without it proves nothing."""

    @property
    def completed_turns(self) -> int:
        """Number of completed turns."""
        return len(self.completed)

    @property
    def last_text(self) -> str | None:
        """The text of the last completed turn; None if it is not known."""
        if self.completed:
            return self.completed[-1].text
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many of the completed requests a replay contains, in their order."""

    completed: int
    compared: int
    """Fewer than completed if the replay was reported in part, or if some requests are not known."""
    found: int
    exact: int
    """Requests that were found word for word; the others were found in a text that was wrapped or cut."""

    @property
    def is_complete(self) -> bool:
        """Whether every completed request was found in its place."""
        return self.found == self.compared == self.completed

    @property
    def sentence(self) -> str:
        """What was compared, for the receipt."""
        sentence = (
            f"{self.found} of {self.compared} completed requests were replayed, in order ({self.exact} word for word)"
        )
        more = self.completed - self.compared
        if more:
            return f"{sentence}; {plural(more, '1 other', '{} others')} could not be compared"
        return sentence


SAME_ID: Final = "the agent named the earlier conversation when it was asked for a new one"
"""How it is known that a conversation continues, if only its id says so."""


def compare_requests(requests: Sequence[Request], replay: Replay) -> Comparison:
    """Find the completed requests in a replay, in order, from the last one backwards."""
    begin_costly_work("a comparison with a replay")
    compared = [request for request in requests if request.is_comparable(replay)]
    if not replay.is_whole:
        compared = compared[-replay.count :]
    search = _BackwardSearch(replay)
    found = [search.find(request) for request in reversed(compared)]
    return Comparison(len(requests), len(compared), len(compared) - found.count(None), found.count(_EXACT))


_EXACT: Final = "exact"
_CONTAINED: Final = "contained"


class _BackwardSearch:
    """Finds requests in a replay, each before the one that was found last."""

    def __init__(self, replay: Replay):
        self._texts = [normalise_text(text) for text in replay.texts]
        self._window = replay.count - len(self._texts)
        """Index of the first replayed request of which the text is known."""
        self._last = replay.count - 1
        """Index of the last replayed request that is still to be searched."""
        self._places: dict[str, list[int]] = defaultdict(list)
        """The indexes of each digest, ascending; digests that do not belong to the texts are ignored."""
        if len(replay.digests) == replay.count:
            for index, digest in enumerate(replay.digests):
                self._places[digest].append(index)

    def find(self, request: Request) -> str | None:
        """Return how a replay shows a request, and continue before it; None if it does not show it."""
        ours = None if request.text is None else normalise_text(request.text)
        exact = self._last_place_of(request.digest)
        for index in range(self._last, max(self._window - 1, exact), -1):
            seen = self._texts[index - self._window]
            if seen == ours:
                exact = index
                break
            place = None if ours is None else find_text(seen, ours)
            if place is not None:
                # An agent may replay several requests as one text: what is before this one is searched again.
                self._texts[index - self._window] = seen[:place]
                self._last = index if place else index - 1
                return _CONTAINED
        if exact < 0:
            return None
        self._last = exact - 1
        return _EXACT

    def _last_place_of(self, digest: str | None) -> int:
        """Return the last index of a digest that is still to be searched; -1 if there is none."""
        places = self._places.get(digest or "", [])
        before = bisect_right(places, self._last)
        if before:
            return places[before - 1]
        return -1


def verify_resume(
    strategy: str,
    outcome: Outcome,
    *,
    replay: Replay,
    requests: Requests,
    known_to_replay: bool,
    names_conversation: bool,
    injected: bool,
    listed: bool | None = None,
    same_id: bool = False,
) -> Verdict:
    """Return the verdict on a start that the agent reported as successful.

    Args:
        strategy: The strategy requested: native, history or fresh.
        outcome: What the agent reported.
        replay: What the agent replayed.
        requests: What our log has of this conversation.
        known_to_replay: Agents of this type replay conversations, or this one was seen to.
        names_conversation: The agent names its conversation in each turn.
        injected: The next prompt carries the history.
        listed: The agent lists the conversation; None if that is not known.
        same_id: The agent was asked for a new conversation and named an earlier one of this session.
    """
    if outcome == "created":
        return _verdict_of_new(strategy, injected, replay, requests, same_id=same_id)
    contradiction = contradicts(replay, requests, known_to_replay)
    if contradiction is None and listed is False and not replay.messages and requests.completed_turns:
        contradiction = "The agent reports success, but it replayed nothing and does not list the conversation."
    if replay.texts and requests.completed:
        comparison = compare_requests(requests.completed, replay)
    else:
        comparison = None
    if contradiction:
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction, comparison)
    return Verdict(ReceiptKind(outcome), _proof(replay, requests, comparison, names_conversation), None, comparison)


def _proof(replay: Replay, requests: Requests, comparison: Comparison | None, names_conversation: bool) -> Verified:
    if comparison is not None and comparison.is_complete:
        return Verified.REPLAY
    first = requests.interrupted if not requests.completed_turns else None
    if first is not None and first.text is not None and any(shows_text(text, first.text) for text in replay.texts):
        return Verified.REPLAY
    if names_conversation:
        return Verified.PENDING
    return Verified.UNPROVEN


def _verdict_of_new(strategy: str, injected: bool, replay: Replay, requests: Requests, *, same_id: bool) -> Verdict:
    """Return the verdict on a conversation that was asked for as a new one.

    Some agents continue the conversation of the directory instead. Then the history would be a second copy of what
    the agent knows. A replay decides whether it does, and without one, the id.
    """
    if replay.texts and requests.completed:
        comparison = compare_requests(requests.completed, replay)
    else:
        comparison = None
    if comparison is not None and comparison.is_complete:
        return Verdict(ReceiptKind.RESUMED, Verified.REPLAY, None, comparison)
    if same_id and contradicts(replay, requests, known_to_replay=False) is None:
        return Verdict(ReceiptKind.RESUMED, Verified.UNPROVEN, None, comparison)
    if injected:
        return Verdict(ReceiptKind.INJECTED, Verified.PENDING, None, comparison)
    if strategy == Strategy.NATIVE:
        contradiction = "The agent was asked for its conversation and opened a new one instead."
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction, comparison)
    return Verdict(ReceiptKind.FRESH, Verified.NONE, None, comparison)


def find_received(held: Mapping[int, str], arrived: Sequence[str], replayed: Sequence[str]) -> frozenset[int]:
    """Return which of the held prompts (texts by id) the replayed texts of users show: they were received (rule 13).

    Texts are counted: a replayed text that belongs to a prompt known to have ``arrived`` does not prove another prompt
    with the same words.
    """
    begin_costly_work("a comparison with a replay")
    known, received = list(arrived), set()
    for key, text in held.items():
        shown = sum(proves_receipt(each, text) for each in replayed)
        if shown > 0 and shown > sum(proves_receipt(each, text) for each in known):
            received.add(key)
            known.append(text)
    return frozenset(received)


def accepted_verdict(outcome: Outcome, contradiction: str) -> Verdict:
    """Return the verdict after a user accepts the loaded conversation: the same kind, without proof.

    Only a conversation that was loaded can be accepted. A new one opened in its place stays a failure.
    """
    if outcome == "created":
        return Verdict(ReceiptKind.FAILED, Verified.NONE, contradiction)
    return Verdict(ReceiptKind(outcome), Verified.NONE)


def contradicts(replay: Replay, requests: Requests, known_to_replay: bool) -> str | None:
    """Return why a replay cannot be our journal's conversation; None if it can."""
    if replay.texts:
        last = requests.completed[-1] if requests.completed else Request()
        if last.text is None or last.digest in replay.digests:
            return None  # without the text it is not known whether an agent has wrapped it
        if any(shows_text(text, last.text) for text in replay.texts):
            return None
        return "The conversation that the agent loaded does not contain the last completed request."
    count = requests.completed_turns
    if count and known_to_replay:
        turns = plural(count, "1 turn was", "{} turns were")
        return f"The agent loaded a conversation without messages; {turns} completed in it."
    return None


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
    if names_conversation:
        return Verified.FIRST_TURN
    return Verified.UNPROVEN


ANSWER_LIMIT: Final = 256 * 1024
"""Characters of the longest answer that gets a digest, because an agent decides how long its answers are."""


def answer_digest(text: str) -> str | None:
    """Return the digest of an agent's answer; None if it is too long."""
    if len(text) <= ANSWER_LIMIT:
        return text_digest(text)
    return None


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
    wanted, quoted = _words(request), _words(answer)
    if not wanted or not quoted:
        return False
    if len(wanted) < _TOO_SHORT:
        return quoted == wanted
    return shows_text(answer, request)


def _words(text: str) -> str:
    """Return the words alone: quotation marks and punctuation do not count."""
    return " ".join(re.findall(r"\w+", text.casefold()))


TOKEN_OF: Final = "token_of"  # noqa: S105  (a key, no secret)
"""Key in ``TaskSession.metadata``: the ``TokenBinding`` of ``executors_running.resume_token``."""
REJECTED_TOKEN_OF: Final = "rejected_token_of"  # noqa: S105
"""The same for ``rejected_resume_token``."""
LOST_TOKEN: Final = "lost_token"  # noqa: S105
"""Key in ``TaskSession.metadata``: fingerprint of the conversation that its agent reported as lost."""


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
