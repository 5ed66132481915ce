"""GitHub Copilot: failures that it reports as the whole text of a turn, which then ends as if it were completed.

The texts of 401 and 429 were observed with 1.0.102, whose strings are compressed; the others follow their form.
"""

from typing import Final

from executors_app.agents import FailureMessage

FAILURE_MESSAGES: Final = (
    FailureMessage(
        "agent_error",
        r"(?:error|(?:execution|request) failed): (?:\w*error: )?(?:40[13]|429|50[0234]|529)\b",
        (
            "Error: 401 Unauthorized",
            "Execution failed: Error: 401 The requested token is not valid",
            "Execution failed: CAPIError: 429 429 Too Many Requests",
            "Request failed: 503 Service Unavailable",
        ),
    ),
)
