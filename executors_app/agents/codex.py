"""Codex: failures that it reports as the whole text of a turn, which then ends as if it were completed.

The samples are strings of the program itself, ``@openai/codex`` 0.166.0, with the status that it fills in.
"""

from typing import Final

from executors_app.agents import USAGE_LIMIT, FailureMessage

FAILURE_MESSAGES: Final = (
    FailureMessage(
        USAGE_LIMIT,
        r"(?:you've hit your usage limit|the usage limit has been reached|quota exceeded\b"
        r"|to use codex with your chatgpt plan, upgrade to)",
        (
            "You\u2019ve hit your usage limit.",
            "You\u2019ve hit your usage limit. To get more access now, send a request to your admin",
            (
                "You\u2019ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit "
                "https://chatgpt.com/settings/usage to purchase more credits"
            ),
            "Quota exceeded. Check your plan and billing details.",
            "To use Codex with your ChatGPT plan, upgrade to Plus: https://chatgpt.com/explore/plus.",
        ),
    ),
    FailureMessage(
        "auth_required",
        r"your access token could not be refreshed\b[^\n]{0,160}sign in again",
        (
            "Your access token could not be refreshed. Please log out and sign in again.",
            (
                "Your access token could not be refreshed because your refresh token has expired. "
                "Please log out and sign in again."
            ),
        ),
    ),
    FailureMessage(
        "agent_error",
        r"(?:unexpected status \d{3}\b|exceeded retry limit, last status: \d{3}\b"
        r"|stream disconnected before completion: |selected model is at capacity\b"
        r"|we're currently experiencing high demand\b)",
        (
            "unexpected status 503 Service Unavailable",
            "exceeded retry limit, last status: 429 Too Many Requests",
            "stream disconnected before completion: Incomplete response returned, reason: content_filter",
            "Selected model is at capacity. Please try a different model.",
            "We\u2019re currently experiencing high demand, which may cause temporary errors.",
        ),
    ),
)
