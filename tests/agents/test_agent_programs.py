"""Explanations for users when an agent's program, or what it needs, is not installed."""

from __future__ import annotations

import pytest

from executors_app.plugins import agent_types
from sessions_app.agents.rules.agent_programs import explain_program_error


def explain(code: str, text: str) -> str:
    names = {"program": "claude-agent-acp", "profile": "Claude", "executor": "local"}
    return explain_program_error(code, text, kind=agent_types()["claude_code"], **names)


@pytest.mark.parametrize("quoted", ["‘node’", "'node'", "node"])
def test_missing_interpreter_is_named(quoted: str) -> None:
    message = (
        f"the agent ended with code 127 before completing initialize: /usr/bin/env: {quoted}: No such file or directory"
    )
    assert explain("agent_exited", message) == (
        "Claude Code needs the program `node`, which was not found on the executor “local”. "
        "Install it there, or add its directory to `PATH`, then try again."
    )


def test_other_errors_of_an_agent_are_quoted() -> None:
    message = "the agent ended with code 1: cannot open data.db: No such file or directory"
    assert explain("agent_exited", message) == message


def test_missing_program_is_reported_with_its_command() -> None:
    assert explain("program_missing", "") == (
        "Claude Code is not installed on the executor “local”: its program `claude-agent-acp` was not found. "
        "Install it there with `npm install -g @agentclientprotocol/claude-agent-acp`, then try again."
    )


def test_missing_program_is_reported_with_the_path_that_was_searched() -> None:
    message = "the program claude-agent-acp was not found in the PATH /usr/bin:/bin"
    assert explain("program_missing", message).endswith(f"then try again. Details: {message}")
