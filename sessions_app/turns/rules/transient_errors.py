"""Recognize transient errors of a model's provider, and schedule the retry of the failed turn.

An error that matches no known pattern counts as permanent and is reported at once. That is the cheaper mistake: a
wrong *permanent* costs the user a click, a wrong *transient* costs minutes of silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from executors_app.agents import CREDIT_EXHAUSTED, USAGE_LIMIT
from executors_app.wire.protocol import Code
from sessions_app.agents.rules.agent_programs import LOGGED_OUT

RETRY_DELAYS: Final = tuple(timedelta(seconds=seconds) for seconds in (5, 10, 20, 40, 60))
"""Delays before the first, second, … retry; the last one repeats."""
MAX_RETRY_AFTER: Final = timedelta(seconds=60)
"""Longest delay that we wait if a provider asks for it. A longer one is a limit that users must know about."""


class ProviderTrouble(StrEnum):
    """Kinds of transient error that a turn is retried after."""

    OVERLOADED = "provider_overloaded"
    RATE_LIMITED = "provider_rate_limited"
    UNREACHABLE = "provider_unreachable"
    CONNECTION_LOST = "provider_connection_lost"


TROUBLE_SENTENCES: Final[Mapping[str, str]] = {
    ProviderTrouble.OVERLOADED: "The model’s provider is overloaded.",
    ProviderTrouble.RATE_LIMITED: "The model’s provider is limiting requests.",
    ProviderTrouble.UNREACHABLE: "The model’s provider cannot be reached.",
    ProviderTrouble.CONNECTION_LOST: "The connection to the model’s provider broke.",
}


@dataclass(frozen=True, slots=True)
class Retry:
    """A scheduled retry of a turn."""

    trouble: str
    """A ``ProviderTrouble``, ``agent_busy``, ``LOGGED_OUT``, ``USAGE_LIMIT``, or a value that another version wrote."""
    message: str
    attempt: int
    of: int
    at: datetime | None
    """Earliest time of the retry; None: as soon as possible."""

    @property
    def sentence(self) -> str:
        """The retry as a sentence for people."""
        if self.trouble == Code.AGENT_BUSY:
            return "The agent is working on its own and did not take the prompt. It is sent again when that work ends."
        if self.trouble == LOGGED_OUT:
            return "A login has ended. The prompt is sent again."
        if self.trouble == CREDIT_EXHAUSTED:
            return "The turn that ended because the account had no credit left is continued."
        if self.trouble == USAGE_LIMIT:
            return "The turn that a usage limit has ended is continued."
        words = TROUBLE_SENTENCES.get(self.trouble, "The turn failed.")
        if self.at is None:  # a try during an outage, which is none of the counted retries
            return f"{words} The turn is retried soon."
        return f"{words} The turn is retried at {self.at:%H:%M:%S} UTC ({self.attempt} of {self.of})."


NON_PROVIDER_CODES: Final = frozenset(
    {
        Code.AGENT_BUSY.value,
        "agent_exited",
        "agent_stuck",
        "attachment_unsupported",
        LOGGED_OUT,
        "context_mismatch",
        "conversation_closed",
        CREDIT_EXHAUSTED,
        "disk_failing",
        "disk_full",
        "internal_error",
        "no_output",
        "not_running",
        "program_missing",
        "spawn_failed",
        "token_rejected",
        "turn_refused",
        USAGE_LIMIT,
    }
)
"""Error codes whose cause is known and is not the provider, whatever the message says."""

_STATUS: Final = r"(?:status(?:[ _-]?code)?|https?(?:/[\d.]+)?|api[ _]error|error|code)[\"'\s:=(#]{1,4}"


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


_PERMANENT: Final = _any_of(
    rf"{_STATUS}40[0134569]\b",
    r"\b(?:authentication|permission|invalid_request|not_found|billing)_error\b",
    r"\b(?:un(?:authori[sz]ed|authenticated)|forbidden|permission[ _]denied)\b",
    r"invalid (?:api|x-api|authentication)[ -]?key|incorrect api key|api key (?:not|is not) valid",
    r"context[ _-]?(?:length|window)|prompt is too long|maximum (?:context|tokens)|request too large",
    r"model[ _]not[ _]found|unknown model|does not exist",
    r"content[ _-]?(?:policy|filter)|\brefus(?:al|ed to answer)\b",
)
_QUOTA: Final = _any_of(
    r"insufficient[ _]quota|exceeded your (?:current )?quota|quota (?:exceeded|exhausted)",
    r"usage limit|spending (?:limit|cap)|credit balance|out of credits|payment required|check your plan",
    r"(?:daily|weekly|monthly|per[ _-]?day)[ \w]*(?:limit|quota)|limit[ \w]*per day",
)
"""Usage limits, which lift only after hours. With a hint of at most ``MAX_RETRY_AFTER`` it is a rate limit instead."""

_TRANSIENT: Final[Mapping[ProviderTrouble, re.Pattern[str]]] = {
    ProviderTrouble.RATE_LIMITED: _any_of(
        rf"{_STATUS}429\b",
        r"\b429 too many requests\b|\btoo many requests\b",
        r"\brate[ _-]?limit|\bresource[ _]exhausted\b|\bthrottl(?:ed|ing)\b",
    ),
    ProviderTrouble.OVERLOADED: _any_of(
        rf"{_STATUS}(?:500|502|503|504|52\d)\b",
        r"\b(?:500 internal server error|502 bad gateway|503 service unavailable|504 gateway time-?out)\b",
        r"\boverloaded(?:_error)?\b|\bapi_error\b|\binternal server error\b",
        r"\bserver[ _]error\b|\bserver had an error\b",
        r"\bbad gateway\b|\bservice (?:is )?(?:temporarily )?unavailable\b|\bgateway time-?out\b",
        r"\b(?:at|over) capacity\b|\bhigh demand\b|\"?status\"?: ?\"UNAVAILABLE\"",
    ),
    ProviderTrouble.CONNECTION_LOST: _any_of(
        r"\bECONNRESET\b|\bEPIPE\b|\bERR_STREAM_PREMATURE_CLOSE\b|\bsocket hang up\b|\bother side closed\b",
        r"\bconnection (?:was )?(?:reset|closed|lost|aborted|terminated)\b|\bbroken pipe\b|\bconnection error\b",
        r"\bstream (?:disconnected|closed|ended|error)\b|\bincomplete chunked read\b|\bunexpected (?:end|eof)\b",
        r"\berror decoding response body\b|\bTypeError: terminated\b|\bpremature close\b",
    ),
    ProviderTrouble.UNREACHABLE: _any_of(
        rf"{_STATUS}408\b",
        r"\bECONNREFUSED\b|\bETIMEDOUT\b|\bENOTFOUND\b|\bEAI_AGAIN\b|\bE(?:NET|HOST)UNREACH\b",
        r"\bUND_ERR_\w+TIMEOUT\b",
        r"\bconnection (?:refused|timed out)\b|\brequest timed out\b|\b(?:read|connect|operation) timed? ?out\b",
        r"\bfetch failed\b|\bfailed to (?:connect|fetch)\b|\berror sending request\b",
        r"\bnetwork (?:error|is unreachable)\b",
        r"\btemporary failure in name resolution\b|\bdns error\b|\bdeadline exceeded\b",
    ),
}
"""Patterns in order of precedence: an explicit status says more than how the connection ended."""

_HINT: Final = re.compile(
    r"(?:retry[ _-]?(?:after|delay|in)|try again (?:in|after)|resets? (?:in|after))[\"'\s:=(]{0,5}"
    r"(?:(?P<minutes>\d{1,12}) ?m(?!s)(?:in(?:ute)?s?)? ?)?"
    r"(?:(?P<amount>\d{1,12}(?:\.\d{1,18})?) ?(?P<unit>ms|s|sec|h|d|w|$|\b))?",
    re.IGNORECASE,
)
_LONGEST_HINT: Final = 1e9
_UNITS: Final = {"ms": 0.001, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def transient_trouble(code: str, message: str) -> ProviderTrouble | None:
    """Return which transient error ended a turn; None if it should not be retried."""
    if code in NON_PROVIDER_CODES:
        return None
    if code in list(ProviderTrouble):
        return ProviderTrouble(code)
    if _PERMANENT.search(message):
        return None
    if _QUOTA.search(message):
        hint = retry_after_hint(message)
        if hint is not None and hint <= MAX_RETRY_AFTER:
            return ProviderTrouble.RATE_LIMITED
        return None
    return next((trouble for trouble, pattern in _TRANSIENT.items() if pattern.search(message)), None)


def retry_after_hint(message: str) -> timedelta | None:
    """Return the delay that the provider's message asks for; None if it names none."""
    found = _HINT.search(message)
    if found is None or not (found["minutes"] or found["amount"]):
        return None
    seconds = float(found["amount"] or 0) * _UNITS.get((found["unit"] or "").lower(), 1.0)
    # Limited, because a message can name any number.
    return timedelta(seconds=min(60 * int(found["minutes"] or 0) + seconds, _LONGEST_HINT))


def retry_delay(attempt: int, message: str) -> timedelta:
    """Return the delay before retry number ``attempt`` (from 1).

    A delay that the provider asks for is respected up to ``MAX_RETRY_AFTER``.
    """
    planned = RETRY_DELAYS[min(max(attempt, 1), len(RETRY_DELAYS)) - 1]
    hint = retry_after_hint(message)
    if hint is None or hint > MAX_RETRY_AFTER:
        return planned
    return max(planned, hint)
