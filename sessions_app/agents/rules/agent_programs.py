"""Agent programs that are not installed or not logged in: error codes, and messages for people."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from executors_app.agents import AgentType
from executors_app.wire.protocol import Code

LOGGED_OUT: Final = str(Code.AUTH_REQUIRED)
NEEDS_PERSON_CODES: Final = frozenset({str(Code.PROGRAM_MISSING), LOGGED_OUT})
"""Error codes that waiting does not resolve: someone must install the program or log in."""
EXPLAINED_CODES: Final = NEEDS_PERSON_CODES | {str(Code.AGENT_EXITED)}
"""Error codes for which ``explain_program_error`` may have more to say than the agent."""
RECHECK_AFTER: Final = timedelta(hours=23)
"""When Kandev tries again on its own. A user's *Try again* does not wait for it."""
RETRY_SENTENCE: Final = (
    "Kandev retries automatically when a login on this page ends, when the program appears on Kandev’s own machine, "
    "and once a day. Your next prompt, or “Try again”, does so at once."
)
_MESSAGE_LIMIT: Final = 500
_NO_INTERPRETER: Final = re.compile(r"\benv: [‘'\"]?(?P<program>[\w.+-]+)[’'\"]?: No such file or directory")
"""What ``/usr/bin/env`` says in the first line of a script whose interpreter is not installed."""


def explain_program_error(
    code: str, message: str, *, kind: AgentType, program: str, profile: str, executor: str
) -> str:
    """Explain to people what is missing, where, and how to install the program or log in.

    ``message`` is the message of agentctl or of the agent; it is returned unchanged for any other ``code``.
    """
    if code == Code.PROGRAM_MISSING:
        explanation = _missing_program(kind, program, profile, executor)
        if message:
            return f"{explanation} Details: {message[:_MESSAGE_LIMIT]}"
        return explanation
    if code == Code.AGENT_EXITED and (found := _NO_INTERPRETER.search(message)):
        return (
            f"{kind.title} needs the program `{found['program']}`, which was not found on the executor “{executor}”. "
            "Install it there, or add its directory to `PATH`, then try again."
        )
    if code == Code.AUTH_REQUIRED:
        # removesuffix: there may be nothing to add.
        return f"{_not_logged_in(kind, profile, executor)} Details: {message[:_MESSAGE_LIMIT]}".removesuffix(
            " Details: "
        )
    return message


def _missing_program(kind: AgentType, program: str, profile: str, executor: str) -> str:
    if program in kind.argv_elsewhere:
        return (
            f"{kind.title} was not found on the executor “{executor}”. It comes with Kandev: update Kandev there, "
            "or build the image of that executor again, then try again."
        )
    if not kind.install or program not in kind.needs:
        return (
            f"The program `{program}` of the agent profile “{profile}” was not found on the executor “{executor}”. "
            "Install it there, or correct the command of the profile, then try again."
        )
    return (
        f"{kind.title} is not installed on the executor “{executor}”: its program `{program}` was not found. "
        f"Install it there with `{kind.install}`, then try again."
    )


def _not_logged_in(kind: AgentType, profile: str, executor: str) -> str:
    key = "its API key"
    if kind.key:
        key = f"`{kind.key}`"
    logged_out = f"{kind.title} is not logged in on the executor “{executor}”."
    key_place = f"{key} in the environment of the agent profile “{profile}”"
    if kind.login:
        return f"{logged_out} Run `{kind.login}` there once or set {key_place}, then try again."
    return f"{logged_out} Set {key_place}, then try again."
