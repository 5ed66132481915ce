"""Claude Code: failures that it reports as the whole text of a turn, which then ends as if it were completed.

Unless noted, the samples are strings of the program itself: Claude Code 2.1.318, in the package
``@anthropic-ai/claude-agent-sdk`` 0.3.318. Where they end with a middle dot, the program appends what it knows.
"""

from typing import Final

from executors_app.agents import CREDIT_EXHAUSTED, USAGE_LIMIT, FailureMessage

FAILURE_MESSAGES: Final = (
    # The beginnings are those of ``USAGE_LIMIT_ERROR_PREFIXES`` in ``sdk.d.ts``.
    FailureMessage(
        USAGE_LIMIT,
        r"you've (?:hit|reached) your (?:[\w'-]+ ){0,4}(?:limit|budget)\b",
        (
            "You've hit your monthly spend limit.",
            "You've hit your channel's monthly spend limit.",
            "You've hit your team's shared budget. Switch to another model",
            "You've reached your Fable limit.",
            # From public bug reports.
            "You've hit your session limit · resets 7:30pm (Europe/Amsterdam)",
            "You\u2019ve hit your limit · resets 3am (UTC)",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:you're out of (?:usage credits|extra usage)|your org(?:anization)? is out of usage"
        r"|your seat type doesn't include (?:extra )?usage|your usage allocation has been disabled by your admin"
        r"|your group's usage limit is set to \$0|fable 5 requires usage credits)",
        (
            "You're out of usage credits. Switch to another model",
            "Your organization is out of usage credits. Contact your admin to add more.",
            "Your org is out of usage · contact your admin",
            "You're out of extra usage",
            "Your seat type doesn't include usage credits",
            "Your seat type doesn't include extra usage",
            "Your usage allocation has been disabled by your admin",
            "Your group's usage limit is set to $0",
            "Fable 5 requires usage credits",
        ),
    ),
    FailureMessage(
        USAGE_LIMIT,
        r"(?:claude (?:ai )?|[\w-]+ )?(?:(?:usage|session|weekly|daily|monthly|5-hour|opus|fable) )"
        r"limit (?:has been )?reached\b",
        (
            "Usage limit reached",
            "Fable limit reached ·",
            # Of earlier versions, from public bug reports.
            "Claude AI usage limit reached|1764345600",
            "Claude usage limit reached. Your limit will reset at 7pm (Europe/Berlin).",
            "5-hour limit reached ∙ resets 4pm",
        ),
    ),
    FailureMessage(
        CREDIT_EXHAUSTED, r"credit balance (?:is )?too low\b", ("Credit balance is too low", "Credit balance too low ·")
    ),
    FailureMessage(
        "auth_required",
        r"(?:api error: 401 )?(?:invalid api key|not logged in|login expired|(?:your )?session (?:has )?expired"
        r"|(?:failed to authenticate: )?oauth token (?:has )?(?:been )?(?:expired|revoked))\b"
        r"[^\n]{0,120}(?:/login|log ?in|sign in)",
        (
            "API Error: 401 Invalid API key · Please run /login",
            "Session expired. Please run /login to sign in again.",
            "Your session has expired. Please run /login to sign in again.",
            "Not logged in. Run claude auth login to authenticate.",
            "Failed to authenticate: OAuth token revoked. Please log in again or contact your administrator.",
            # Named in ``acp-agent.js`` of ``@agentclientprotocol/claude-agent-acp`` 0.101.0.
            "Not logged in · Please run /login",
            "Login expired · Run /login to sign in again, or re-authenticate your Anthropic profile",
        ),
    ),
    FailureMessage(
        "agent_error",
        r"api error: (?:\d{3}\b|connection|request|timeout|overloaded|rate limit|repeated 529)",
        (
            "API Error: Request was aborted.",
            "API Error: 400 due to tool use concurrency issues.",
            "API Error: 400 orphaned tool_result in conversation history.",
            # The program puts the provider's own answer behind the status; this one is from public bug reports.
            'API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
        ),
    ),
)
