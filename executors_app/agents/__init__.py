"""The contract of an agent type. ``table.py`` beside it lists those that Kandev knows.

A module of this package may declare agent types: several as ``AGENT_TYPES``, or one as ``AGENT_TYPE``.
``executors_app.plugins`` finds them, and no other file has to be edited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from executors_app.wire.executions import LOCAL

CAPABILITIES: Final = ("load", "resume", "list", "fork", "close", "delete")
"""What an ACP agent may offer for its conversations; each is the method ``session/<name>``."""
_REGISTRY_PROBES: Final = frozenset({"load", "resume", "list", "fork"})
"""What the protocol matrix of the ACP registry records for each agent."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Which of ``CAPABILITIES`` an agent offers, and the version and source of that information."""

    source: Literal["measured", "published"]
    """*measured*: by the tests of this repository, with the agent itself."""
    version: str
    offered: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()


def measured(version: str, *offered: str) -> Offer:
    """Return an offer of exactly what this version offered in the tests of this repository."""
    return Offer("measured", version, frozenset(offered), frozenset(CAPABILITIES) - set(offered))


def published(version: str, *offered: str, probed: Collection[str] = _REGISTRY_PROBES) -> Offer:
    """Return what this version offers according to the registry's protocol matrix or its makers' documentation.

    A capability that is not in ``probed`` is known only if it is ``offered``.
    """
    return Offer("published", version, frozenset(offered), frozenset(probed) - set(offered))


_VERSION: Final = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})(-?)[\w.+-]*")


def is_older(version: str, needed: str) -> bool:
    """Return whether a version is older than another; False if either cannot be read.

    A pre-release (``1.0.0-beta``) is older than its release.
    """
    found, wanted = _VERSION.fullmatch(version.strip()), _VERSION.fullmatch(needed)
    if found is None or wanted is None:
        return False
    numbers, least = ([int(part) for part in each[1].split(".")] for each in (found, wanted))
    width = max(len(numbers), len(least))
    numbers, least = ([*each, *[0] * (width - len(each))] for each in (numbers, least))
    return numbers < least or (numbers == least and bool(found[2]) and not wanted[2])


@dataclass(frozen=True, slots=True)
class SeedClaim:
    """What the original design document says about an agent type, for comparison in ``docs/agents.md``."""

    native: bool
    """Whether it restores its own conversation (NativeSessionResume)."""
    history: bool
    """Whether it gets the history with the next prompt (HistoryContextInjection)."""
    notes: str = ""


_LOAD_SHARE: Final = 0.8
"""Share of a whole start for the agent's part, if it restores a long conversation; the rest is for the workspace."""
_MAX_LOAD: Final = 600.0
"""Seconds; agentctl accepts no more."""

USAGE_LIMIT: Final = "usage_limit"
"""Code of a turn that ended because the agent has used up what its provider allows it for a time."""


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """A failure that an agent reports as the whole text of a turn, which then ends as if it were completed."""

    code: str
    """Code of the failed turn: ``usage_limit``, ``auth_required``, or ``agent_error`` for an error of the provider."""
    pattern: str
    """Regular expression for the beginning of the text, without regard to case; apostrophes are straight."""
    samples: Sequence[str]
    """Whole texts that must be recognised. Add one for each text that was seen."""


_NO_MORE: Final = r"(?:has been |was |is )?(?:exceeded|reached|hit|exhausted|used up)"
_ENDS_OR_GOES_ON: Final = r"(?=\W*$| ?[.:;!,|·∙(]| (?:for|please|try|until|resets?|upgrade|on)\b)"
"""After the failure, unlike in an explanation (*Rate limit exceeded means that ...*)."""
COMMON_FAILURE_MESSAGES: Final = (
    FailureMessage(
        USAGE_LIMIT,
        r"(?:error: )?you(?:'ve| have)? (?:hit|reached|exceeded|used up) (?:all )?(?:of )?your (?:[\w-]+ ){0,4}"
        r"(?:limits?|quota|allowance|credits?|tokens|budget)\b",
        (
            "You have reached your weekly limit. Your limit will reset at 5 PM.",
            "You exceeded your current quota, please check your plan and billing details.",
            "Error: You have exceeded your monthly included credits.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"you(?:'ve| have| are|'re) (?:run out of|out of|used (?:up )?all(?: of)? your)(?: available| included)? "
        r"(?:[\w-]+ ){0,3}(?:credits?|tokens|requests|quota|usage)\b",
        (
            "You've run out of credits. Add more at https://example.org/billing",
            "You've used all of your available tokens for today",
            "You are out of free requests. Upgrade to continue.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:error: )?(?:your )?(?:[\w-]+ ){0,3}(?:rate|usage|token|request|message|spending|quota|credit|free tier) "
        rf"(?:limit|allowance|quota) {_NO_MORE}{_ENDS_OR_GOES_ON}",
        (
            "Rate limit exceeded. Please try again in 20 minutes.",
            "Usage limit reached for gpt-5. Upgrade to Pro to continue.",
            "Premium request allowance exceeded. Enable additional paid premium requests.",
            "Error: Your daily message limit has been reached (resets at 00:00 UTC)",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:error: )?(?:insufficient[_ ](?:quota|credits?|balance|funds)|payment required"
        r"|your (?:[\w-]+ ){0,2}(?:trial|subscription|plan) (?:has )?(?:ended|expired)"
        rf"|(?:your )?(?:credit|account) balance is (?:too low|exhausted)){_ENDS_OR_GOES_ON}",
        (
            "Error: insufficient_quota",
            "Insufficient credits. Add more to continue.",
            "Your free trial has ended. Subscribe to continue.",
            "Your credit balance is too low!",
        ),
    ),
    FailureMessage(
        "agent_error",
        r"(?:[\w ]{0,40}(?:error|failed|status)[: ]+)?(?:error: )?(?:http )?(?:unexpected )?(?:status )?"
        r"[45]\d\d[: ]+(?:too many requests|unauthorized|forbidden|payment required|service unavailable|bad gateway"
        r"|gateway time-?out|internal server error|overloaded|\{)",
        (
            "429 Too Many Requests",
            "401 Unauthorized",
            "Provider returned error: 503 Service Unavailable",
            "stream error: unexpected status 402 Payment Required",
            'Error: 429 {"error":{"type":"rate_limit_error","message":"Slow down"}}',
        ),
    ),
)
"""Failures as any agent may tell them, in the words of common providers."""


@dataclass(frozen=True, slots=True)
class AgentType:
    """What is known of one kind of agent; every claim is checked against the running agent."""

    name: str
    title: str
    driver: str = "acp"
    argv: Sequence[str] = ()
    """Empty: the profile names the command, which only staff can set."""
    argv_elsewhere: Sequence[str] = ()
    """On every runtime but ``local_standalone``, where a path of this machine means nothing; empty: ``argv``."""
    env: Mapping[str, str] = field(default_factory=dict)
    supports_session_resume: bool = True
    """Whether it may restore its own conversation; the running agent can only deny it."""
    supports_workspace_only: bool = True
    history_context_injection: bool = False
    prefer_load: bool = True
    """Whether to try ``session/load`` before ``session/resume``, because a replay can be verified."""
    load_timeout: float | None = None
    """Seconds for a start that restores the conversation; None: four fifths of ``KANDEV_START_TIMEOUT``."""
    replays_on_load: bool = False
    """Known to replay the conversation on load: an empty replay then contradicts the log.

    False: an empty replay is unproven, until an agent of this name and version has replayed something.
    """
    gone_patterns: Sequence[str] = ()
    """Regular expressions for error texts that report the conversation as gone; a profile may add its own.

    An error that names the conversation has this meaning for every type, whatever its code.
    """
    asks_permission: bool = True
    """False: it was observed to run tools without asking, so that the permission mode *ask* has no effect."""
    failure_messages: Sequence[FailureMessage] = ()
    """Failures that it reports as text."""
    errs_about_gone: bool = False
    """Whether it may report *gone* wrongly: then it takes two reports 90 s apart to set the token aside."""
    needs: Sequence[str] = ()
    """Executables that must be on PATH; by default the first word of ``argv`` if there is an ``install``."""
    install: str = ""
    """The command that installs them; empty: it ships with Kandev, or the profile names its own."""
    login: str = ""
    """The command that logs it in once; empty: none is known."""
    key: str = ""
    """The environment variable that logs it in instead; empty: none is known."""
    stores: str = ""
    """Where it keeps its conversations, in ``~`` or in the workspace; empty: unknown."""
    offers: Offer | None = None
    """What it offers for its conversations; None: unknown."""
    minimum: Mapping[str, str] = field(default_factory=dict)
    """The oldest version that has what Kandev needs, by the name that the agent gives itself; empty: none is known."""
    registry: str = ""
    """Its id in the ACP registry; empty: it is not listed there."""
    notes: str = ""
    """For ``docs/agents.md``: measurements and other information for its users."""
    seed: SeedClaim | None = None
    """None: the design document does not mention it."""
    differs_from_seed: str = ""
    """Why the declaration differs from the seed; empty if and only if resume and history agree."""

    def __post_init__(self) -> None:
        if self.install and not self.needs:
            object.__setattr__(self, "needs", tuple(self.argv[:1]))

    @property
    def names_conversation(self) -> bool:
        """Whether each turn names its conversation: command lines do, a turn of ACP does not."""
        return self.driver.endswith("_cli")

    def load_limit(self, start_timeout: float) -> float:
        """Return the seconds for restoring a conversation in a start that may take ``start_timeout`` seconds."""
        wanted = _LOAD_SHARE * start_timeout if self.load_timeout is None else self.load_timeout
        return float(min(wanted, start_timeout, _MAX_LOAD))

    def argv_on(self, runtime: str) -> Sequence[str]:
        """Return the command for the runtime where the agent runs."""
        return self.argv_elsewhere if self.argv_elsewhere and runtime != LOCAL else self.argv

    def offers_capability(self, capability: str) -> bool | None:
        """Return whether it offers one of ``CAPABILITIES``; None if that is not known."""
        if self.offers is None or capability not in self.offers.offered | self.offers.lacking:
            return None
        return capability in self.offers.offered

    @property
    def update(self) -> str:
        """The command that brings an installed program to its newest version; empty: it is not installed."""
        upgrades = {"pip install ": "pip install --upgrade ", "uv tool install ": "uv tool upgrade "}
        found = next((words for words in upgrades if self.install.startswith(words)), "")
        return upgrades.get(found, "") + self.install.removeprefix(found)

    def required_version(self, agent_name: str, version: str) -> str:
        """Return the version that an agent of this name needs, if its own is older; empty if not, or if unknown."""
        needed = self.minimum.get(agent_name, "")
        return needed if needed and is_older(version, needed) else ""

    @property
    def setup_notes(self) -> str:
        """How to log in and where conversations are kept, as Markdown sentences; empty if neither is known."""
        ways = [f"`{way}`" for way in (self.key, self.login) if way]
        told = [f"Login: {' or '.join(ways)}."] if ways else []
        if self.stores:
            told.append(f"Conversations: {self.stores}.")
        return " ".join(told)
