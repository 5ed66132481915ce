"""Which agent profile a node means."""

from __future__ import annotations

import pytest

from executors_app.models import AgentProfile
from sessions_app.services.workflow_runners import NoSuchAgent, choose

CLAUDE = AgentProfile(name="Claude", agent_type="claude_code")
CLI = AgentProfile(name="Claude in a terminal", agent_type="claude_cli")
LARGE = AgentProfile(name="Large", agent_type="claude_code", model="large")
CODEX = AgentProfile(name="Codex", agent_type="codex")
CHAT = AgentProfile(name="Chat", agent_type="openai_chat", model="small")
DEMO = AgentProfile(name="Demo", agent_type="demo")
ALL = [CLI, CLAUDE, LARGE, CODEX, CHAT, DEMO]


@pytest.mark.parametrize(
    ("own", "runner", "model", "found"),
    [
        (None, "claude-code", "", CLAUDE),
        (CLI, "claude-code", "", CLI),
        (DEMO, "claude-code", "large", LARGE),
        (None, "codex", "", CODEX),
        (None, "openai", "small", CHAT),
        (None, "demo", "", DEMO),
        (None, "large", "", LARGE),
        (None, "Claude in a terminal", "", CLI),
        (DEMO, "", "", DEMO),
        (CLAUDE, "", "large", LARGE),
    ],
)
def test_a_runner_is_a_profile_of_its_kind(
    own: AgentProfile | None, runner: str, model: str, found: AgentProfile
) -> None:
    assert choose(ALL, own, runner, model) is found


@pytest.mark.parametrize(
    ("own", "runner", "model", "words"),
    [
        (None, "gemini-cli", "", ["gemini-cli", "“Codex” (codex)"]),
        (None, "", "", ["names no runner", "“Demo” (demo)"]),
        (None, "claude-code", "huge", ["model “huge”", "“Large” (large)", "“Claude” (its own choice)"]),
    ],
)
def test_what_there_is_is_said_where_nothing_fits(
    own: AgentProfile | None, runner: str, model: str, words: list[str]
) -> None:
    with pytest.raises(NoSuchAgent) as error:
        choose(ALL, own, runner, model)
    assert [word for word in words if word not in str(error.value)] == []


def test_the_only_agent_there_is_needs_no_name() -> None:
    assert choose([DEMO], None, "", "") is DEMO


def test_the_agent_of_the_run_goes_before_one_that_is_called_like_the_runner() -> None:
    called = AgentProfile(name="claude-code", agent_type="claude_cli")
    assert choose([called, CLI], CLI, "claude-code", "") is CLI
    assert choose([CLI, called], None, "claude-code", "") is called
    assert choose([CLI, called, CODEX], CODEX, "claude-code", "") is called
