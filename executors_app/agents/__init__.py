"""The contract of an agent type. ``table.py`` beside it lists those that Kandev knows.

A module of this package may declare agent types: several as ``AGENT_TYPES``, or one as ``AGENT_TYPE``.
``executors_app.plugins`` finds them, and no other file has to be edited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
    steers: bool | None = None
    """Whether it takes a prompt into a running turn (``_session/steering``); None: unknown."""


def measured(version: str, *offered: str, steers: bool = False) -> Offer:
    """Return an offer of exactly what this version offered in the tests of this repository.

    That it ``steers``, or does not, is proven by ``test_agents_that_steer.py``.
    """
    return Offer("measured", version, frozenset(offered), frozenset(CAPABILITIES) - set(offered), steers)


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


class Coverage(StrEnum):
    """What a figure counts that an agent reports in a turn."""

    TURN = "turn"
    """This turn alone."""
    CONVERSATION = "conversation"
    """Everything since the conversation began, also after a restart of the agent."""
    PROCESS = "process"
    """Everything since the agent's process began; after a restart it may begin with what it had reported before."""
    UNKNOWN = "unknown"
    """Not known, or a part of the turn: it is not summed."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the figures of an agent count. Those of installed agents are proven by ``test_usage_reports.py``."""

    tokens: Coverage = Coverage.UNKNOWN
    cost: Coverage = Coverage.UNKNOWN
    input_has_cached: bool = False
    """Whether its tokens in include those that were read from a cache or written into one."""


@dataclass(frozen=True, slots=True)
class SeedClaim:
    """What the original design document says about an agent type, for comparison in ``docs/agents.md``."""

    native: bool
    """Whether it restores its own conversation (NativeSessionResume)."""
    history: bool
    """Whether it gets the history with the next prompt (HistoryContextInjection)."""
    notes: str = ""


_LOAD_SHARE: Final = 0.8
"""Share of a whole start for the agent's part; the rest is for the workspace."""
_MAX_LOAD: Final = 600.0
"""Seconds; agentctl accepts no more."""

USAGE_LIMIT: Final = "usage_limit"
"""Code of a turn that ended because the agent has used up what its provider allows it for a time."""
CREDIT_EXHAUSTED: Final = "credit_exhausted"
"""Code of a turn that ended because the account has to be paid: no time ends that."""
LIMIT_CODES: Final = frozenset({USAGE_LIMIT, CREDIT_EXHAUSTED})
"""Codes of turns that a limit has ended: their sessions are suspended."""


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """A failure that an agent reports as the whole text of a turn, which then ends as if it were completed."""

    code: str
    """Code of the failed turn: ``usage_limit``, ``credit_exhausted``, ``auth_required``, or ``agent_error`` for another
    error of the provider."""
    pattern: str
    """Regular expression for the beginning of the text, without regard to case; apostrophes are straight."""
    samples: Sequence[str]
    """Whole texts that must be recognised. Add one for each text that was seen."""


_NO_MORE: Final = r"(?:has been |was |is )?(?:exceeded|reached|hit|exhausted|used up)"
_ENDS_OR_GOES_ON: Final = r"(?=\W*$| ?[.:;!,|·∙(]| (?:for|please|try|until|resets?|upgrade|on)\b)"
"""After the failure, unlike in an explanation (*Rate limit exceeded means that ...*)."""
_ENDS: Final = r"(?=\W*$| ?[.:;!,|·∙(])"
"""After a failure in another language."""
_OF_ROMANCE: Final = r"(?: (?:de |d'|di |d[aeo]s? )[^.,\n]{1,30}?)?"
"""Of what, in French, Spanish, Portuguese and Italian."""
_APOLOGY: Final = r"(?:(?:i'm )?sorry,? (?:but )?|oops[,!.]? )?(?:(?:api )?error:? )?"
"""What may precede it."""
_YOU_HAVE: Final = r"(?:you(?:'ve| have)?|your account has)"
COMMON_FAILURE_MESSAGES: Final = (
    FailureMessage(
        USAGE_LIMIT,
        rf"{_APOLOGY}{_YOU_HAVE} (?:hit|reached|exceeded|exhausted|used up) (?:all )?(?:of )?"
        r"(?:your (?:[\w.-]+ ){0,4}(?:limits?|quota|allowance|credits?|tokens|budget|capacity)\b"
        rf"|the (?:[\w.-]+ ){{0,4}}(?:limits?|quota|number of requests|number of messages){_ENDS_OR_GOES_ON})",
        (
            "You have reached your weekly limit. Your limit will reset at 5 PM.",
            "You exceeded your current quota, please check your plan and billing details.",
            "Error: You have exceeded your monthly included credits.",
            "I'm sorry, but you've hit your usage limit.",
            "Sorry, you have exceeded your premium request allowance.",
            "Sorry, you've exceeded your rate limits. Please wait a moment before trying again.",
            "[API Error: You exceeded your current quota, please check your plan]",
            "You've reached the limit for free requests. Upgrade to continue.",
            "You have hit the rate limit. Please try again in 20 minutes",
            "You have reached the maximum number of requests for today.",
            # Of Gemini CLI, from public bug reports.
            "You have exhausted your capacity on this model. Your quota will reset after 3h12m5s.",
            "You have exhausted your daily quota on this model.",
            "⚡ You have reached your daily gemini-2.5-pro quota limit",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        rf"{_APOLOGY}(?:you(?:'ve| have| are|'re) been|your request (?:was|has been)) rate[- ]limited"
        rf"{_ENDS_OR_GOES_ON}",
        (
            "Sorry, you've been rate-limited. Please wait a moment before trying again.",
            "Sorry, your request was rate-limited.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        rf"{_APOLOGY}(?:you(?:'ve| have| are|'re)|your account (?:has|is)) "
        r"(?:(?:run out of|out of|used (?:up )?all(?: of)? your|used up your)(?: available| included)? "
        r"(?:[\w-]+ ){0,3}(?:credits?|tokens|requests|quota|usage)\b"
        r"|used 100 ?% of your (?:[\w-]+ ){0,4}(?:limits?|quota|usage|allowance|credits)\b"
        r"|no (?:[\w-]+ ){0,2}(?:quota|requests|tokens|usage) (?:left|remaining)\b)",
        (
            "You've run out of credits. Add more at https://example.org/billing",
            "You've used all of your available tokens for today",
            "You are out of free requests. Upgrade to continue.",
            "Your account is out of credits",
            "You have used up your included usage.",
            "You've used 100% of your Cursor usage limit",
            "You have no quota remaining. Sorry, you have been rate-limited.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        rf"{_APOLOGY}(?:out of credits?|no credits? (?:left|remaining)|you have no (?:more )?credits?(?: left)?"
        r"|you do(?:n't| not) have enough credits?|this request requires more credits)"
        rf"(?:{_ENDS_OR_GOES_ON}|(?= to continue\b))",
        (
            "Out of credits. Please top up.",
            "No credits remaining. Add credits to continue.",
            "You have no credits left.",
            "You don't have enough credits to continue.",
            "This request requires more credits, or fewer max_tokens.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        rf"{_APOLOGY}(?:your )?(?:[\w-]+ ){{0,3}}"
        r"(?:(?:rate|usage|token|request|message|prompt|spend(?:ing)?|quota|credit|free tier|hard|plan|concurrency)"
        rf" (?:limits?|allowance|quota|cap)|individual quota) {_NO_MORE}{_ENDS_OR_GOES_ON}"
        rf"|{_APOLOGY}(?:max(?:imum)? )?budget(?: of [^.\n]{{1,20}})? {_NO_MORE}{_ENDS_OR_GOES_ON}"
        rf"|{_APOLOGY}(?:premium |free |included )(?:requests|tokens) {_NO_MORE}{_ENDS_OR_GOES_ON}"
        rf"|{_APOLOGY}your (?:organi[sz]ation|workspace|team|account|project) has (?:reached|exceeded|hit|exhausted)"
        r" (?:its|the) (?:[\w-]+ ){0,3}(?:limits?|quota|cap|budget)\b",
        (
            "Rate limit exceeded. Please try again in 20 minutes.",
            "Usage limit reached for gpt-5. Upgrade to Pro to continue.",
            "Premium request allowance exceeded. Enable additional paid premium requests.",
            "Error: Your daily message limit has been reached (resets at 00:00 UTC)",
            "Billing hard limit has been reached",
            "Individual quota reached. Please upgrade your subscription to increase your limits. Resets in 3h.",
            "Spend limit reached",
            "Spending cap exceeded: $10.00 of $10.00",
            "Plan limit reached. Please upgrade",
            "Max budget of 10 USD exceeded",
            "Premium requests exhausted for this month",
            "Your organization has reached its spending limit.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        rf"{_APOLOGY}(?:(?:your )?(?:(?:daily|weekly|monthly|free|current) )?(?:quota|free usage) {_NO_MORE}"
        rf"|limit reached){_ENDS_OR_GOES_ON}",
        (
            "Quota exhausted. Resets in 2 h.",
            "Free usage exceeded, add credits",
            "Limit reached · resets 5pm · /upgrade to Max",
            "[API Error: Quota exceeded for quota metric 'Gemini 2.5 Pro Requests']",
        ),
    ),
    FailureMessage(
        CREDIT_EXHAUSTED,
        r"(?:error: )?(?:(?:your account has )?insufficient[_ ](?:quota|credits?|balance|funds)(?: to continue)?"
        r"|payment required"
        r"|your (?:[\w-]+ ){0,2}(?:trial|subscription|plan) (?:has )?(?:ended|expired)"
        rf"|(?:your )?(?:credit|account) balance is (?:too low|exhausted)){_ENDS_OR_GOES_ON}",
        (
            "Error: insufficient_quota",
            "Insufficient credits. Add more to continue.",
            "Insufficient credits to continue. Add credits at https://example.org/billing",
            "Your account has insufficient balance. Please recharge.",
            "Your free trial has ended. Subscribe to continue.",
            "Your credit balance is too low!",
        ),
    ),
    FailureMessage(
        "agent_error",
        r"(?:[\w ]{0,40}(?:error|failed|status)(?: code)?[: (]+)?(?:error: )?(?:http )?(?:unexpected )?(?:status )?"
        r"[45]\d\d(?:[: ]+(?:too many requests|unauthorized|forbidden|payment required|service unavailable|bad gateway"
        r"|gateway time-?out|internal server error|overloaded)| ?[-:]? ?\{)",
        (
            '[API Error: {"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota)."}}]',
            "429 Too Many Requests",
            "401 Unauthorized",
            "Provider returned error: 503 Service Unavailable",
            "stream error: unexpected status 402 Payment Required",
            'Error: 429 {"error":{"type":"rate_limit_error","message":"Slow down"}}',
            'API Error (429 {"type":"error","error":{"type":"rate_limit_error"}})',
            "Error code: 429 - {'error': {'message': 'Rate limit'}}",
        ),
    ),
    FailureMessage(
        "agent_error",
        r"(?:litellm\.\w{1,60}error: |request rejected \([45]\d\d\)"
        r"|\[?(?:api )?error: ?\{\W{0,3}(?:error|code|status)\b)",
        (
            "litellm.RateLimitError: RateLimitError: OpenAIException - quota",
            "Request rejected (429) · this may be a temporary capacity issue",
        ),
    ),
    # In other languages: a limit, and that it is reached, in either order. The Chinese texts are those of providers.
    FailureMessage(
        USAGE_LIMIT,
        r"(?:(?:您|你)的?)?(?:账户|账号|帳戶|帳號)?(?:已[达達]到?|[达達]到了?|已超[出过過]|超[出过過]了?)[^，。\n]{0,20}(?:上限|限制|限[额額]|[额額]度|配[额額])"
        r"|(?:(?:您|你)的?)?(?:账户|账号|帳戶|帳號)?(?:[余餘][额額]不足|[^，。\n]{0,10}(?:[额額]度|配[额額]|次[数數])已(?:用完|用尽|用盡|耗尽|耗盡))"
        r"|(?:[当當]前)?[请請]求(?:[数數])?(?:[过過]多|[过過]于[频頻]繁|[频頻]繁)"
        r"|[^、。\n]{0,12}(?:制限|上限)(?:に達しました|を超えました|を超過しました)"
        r"|[^.\n]{0,12}(?:한도|제한)(?:에|를|을)? ?(?:도달|초과)",
        (
            "余额不足或无可用资源包,请充值。",
            "您的账户已达到速率限制，请您控制请求频率",
            "已达到 5 小时的使用上限。您的限额将在 18:00 重置。",
            "已达到使用上限",
            "今日免费额度已用尽",
            "当前请求过多，请稍后重试",
            "您已達到使用上限，請稍後再試。",
            "利用制限に達しました",
            "レート制限に達しました。しばらくしてから再試行してください。",
            "사용량 한도에 도달했습니다. 오후 7시에 재설정됩니다.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:du hast dein|sie haben ihr) (?:\w*limit|kontingent) (?:erreicht|ausgeschöpft|aufgebraucht|überschritten)\b"
        r"|(?:dein|ihr) (?:\w*kontingent|guthaben|\w*limit) (?:ist|wurde)"
        r" (?:erschöpft|aufgebraucht|erreicht|überschritten)\b"
        rf"|\w*(?:limit|kontingent) (?:erreicht|ausgeschöpft|aufgebraucht|überschritten){_ENDS}"
        r"|je hebt je \w*limiet bereikt\b"
        rf"|\w*limiet bereikt{_ENDS}",
        (
            "Du hast dein Nutzungslimit erreicht. Es wird um 19:30 Uhr zurückgesetzt.",
            "Ihr Kontingent ist erschöpft.",
            "Nutzungslimit erreicht · zurückgesetzt um 19:30 Uhr",
            "Je hebt je gebruikslimiet bereikt.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:vous avez|tu as) (?:atteint|dépassé|épuisé) (?:votre|ta|ton|la|le) (?:limite|quota)\b"
        rf"|(?:limite|quota){_OF_ROMANCE} (?:atteinte?|dépassée?|épuisée?){_ENDS}"
        r"|(?:has|ha) (?:alcanzado|superado|agotado|excedido) (?:tu|su|el|la) (?:límite|cuota)\b"
        rf"|(?:límite|cuota){_OF_ROMANCE} (?:alcanzad|superad|agotad|excedid)[oa]{_ENDS}"
        r"|(?:você )?(?:atingiu|excedeu|esgotou) (?:o |a )?(?:seu |sua )?(?:limite|cota)\b"
        rf"|(?:limite|cota){_OF_ROMANCE} (?:atingid|excedid|esgotad)[oa]{_ENDS}"
        r"|hai (?:raggiunto|superato|esaurito) (?:il |la )?(?:tuo |tua )?(?:limite|quota)\b"
        rf"|(?:limite|quota){_OF_ROMANCE} (?:raggiunt|superat|esaurit)[oa]{_ENDS}",
        (
            "Vous avez atteint votre limite d'utilisation.",
            "Limite d'utilisation atteinte",
            "Has alcanzado tu límite de uso.",
            "Límite de uso alcanzado. Se restablece a las 19:00.",
            "Você atingiu seu limite de uso.",
            "Limite de uso atingido",
            "Hai raggiunto il limite di utilizzo.",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:вы )?(?:достигли|превысили|исчерпали) (?:свой |ваш |своего |вашего )?(?:\w+ )?(?:лимит|квот)\w*"
        r"|(?:превышен|исчерпан|достигнут)[ао]? (?:\w+ )?(?:лимит|квота)\b"
        rf"|(?:ваш )?(?:лимит|квота)(?: \w+){{0,2}} (?:исчерпан|превышен|достигнут)[ао]?{_ENDS}"
        r"|(?:osiągnięto|przekroczono|wyczerpano) (?:\w+ )?limit\b"
        r"|(?:\w+ )?(?:sınırına|limitine|kotanıza) ulaştınız\b|(?:\w+ )?(?:sınırı|limiti|kotası) aşıldı\b",
        (
            "Вы достигли лимита использования.",
            "Лимит использования исчерпан. Сброс в 19:30.",
            "Превышен лимит запросов",
            "Osiągnięto limit użycia.",
            "Kullanım sınırına ulaştınız.",
        ),
    ),
    FailureMessage(
        "agent_error",
        r"(?:error: )?(?:too many requests|(?:internal )?server error|service unavailable|overloaded(?:_error)?"
        r"|(?:the|this|your) (?:selected )?model is (?:currently |temporarily )?(?:overloaded|at capacity|unavailable)"
        r"|(?:the )?server is (?:currently |temporarily )?(?:busy|overloaded)"
        r"|(?:this|your) (?:organi[sz]ation|account) has been (?:disabled|suspended))"
        r"(?=\W*$|[.:,] )",
        (
            "Too Many Requests",
            "Server is busy, please try again later",
            "This organization has been disabled.",
            "Too many requests. Please slow down.",
            "Overloaded",
            "The model is currently overloaded. Please try again later.",
            "Internal server error",
        ),
    ),
    FailureMessage(
        "auth_required",
        r"(?:please run /login\b|oauth token has expired\b|(?:error: )?(?:incorrect|invalid) api key(?: provided)?"
        r"(?=\W*$|[.:] | ·))",
        (
            "Please run /login · API Error: 401",
            "OAuth token has expired. Please obtain a new token or refresh your existing token.",
            "Error: Incorrect API key provided: sk-12. You can find your API key at https://example.org/keys",
            "Invalid API key · Fix external API key",
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
    refuses_first: bool = False
    """Proven to refuse a prompt at a usage limit before it works on it: the prompt may be given again by itself."""
    failure_messages: Sequence[FailureMessage] = ()
    """Failures that it reports as text."""
    errs_about_gone: bool = False
    """Whether it may report *gone* wrongly: then it takes two reports 90 s apart to set the token aside."""
    usage: UsageReport = UsageReport()
    """What the figures count that it reports."""
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

    @staticmethod
    def handshake_limit(start_timeout: float) -> float:
        """Return the seconds for an agent to answer and to open a new conversation, which may load much of its own."""
        return float(min(_LOAD_SHARE * start_timeout, _MAX_LOAD))

    def load_limit(self, start_timeout: float) -> float:
        """Return the seconds for restoring a conversation in a start that may take ``start_timeout`` seconds."""
        if self.load_timeout is None:
            wanted = _LOAD_SHARE * start_timeout
        else:
            wanted = self.load_timeout
        return float(min(wanted, start_timeout, _MAX_LOAD))

    def argv_on(self, runtime: str) -> Sequence[str]:
        """Return the command for the runtime where the agent runs."""
        if self.argv_elsewhere and runtime != LOCAL:
            return self.argv_elsewhere
        return self.argv

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
        if needed and is_older(version, needed):
            return needed
        return ""

    @property
    def setup_notes(self) -> str:
        """How to log in and where conversations are kept, as Markdown sentences; empty if neither is known."""
        ways = [f"`{way}`" for way in (self.key, self.login) if way]
        sentences = []
        if ways:
            sentences.append(f"Login: {' or '.join(ways)}.")
        if self.stores:
            sentences.append(f"Conversations: {self.stores}.")
        return " ".join(sentences)
