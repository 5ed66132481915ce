"""Which agent profile a node selects, and which model its session requests."""

from __future__ import annotations

import pytest

from executors_app.models import AgentProfile
from sessions_app.workflows.loader.loading import load_workflow
from sessions_app.workflows.services.agent_choice import AgentChoice, NoMatchingAgent, choose_agent, choose_agents
from tests.workflows.workflow_builder import body, node, workflow

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
def test_runner_selects_a_profile_of_its_agent_type(
    own: AgentProfile | None, runner: str, model: str, found: AgentProfile
) -> None:
    assert choose_agent(ALL, own, runner, model) == AgentChoice(found)


def test_unknown_model_is_requested_from_the_agent() -> None:
    assert choose_agent(ALL, None, "claude-code", "huge") == AgentChoice(CLAUDE, "huge")
    assert choose_agent(ALL, CODEX, "", "huge") == AgentChoice(CODEX, "huge")


@pytest.mark.parametrize(
    ("own", "runner", "model", "words"),
    [
        (None, "gemini-cli", "", ["gemini-cli", "“Codex” (codex)"]),
        (None, "", "", ["names no runner", "“Demo” (demo)"]),
        (DEMO, "demo", "huge", ["“Demo”", "model “huge”"]),
        (DEMO, "gemini-cil", "", ["“gemini-cil”"]),
        (CODEX, "gemini-cli", "", ["gemini-cli"]),
    ],
)
def test_error_lists_available_agents(own: AgentProfile | None, runner: str, model: str, words: list[str]) -> None:
    with pytest.raises(NoMatchingAgent) as error:
        choose_agent(ALL, own, runner, model)
    assert [word for word in words if word not in str(error.value)] == []


def test_only_agent_needs_no_name() -> None:
    assert choose_agent([DEMO], None, "", "").profile is DEMO


def test_demo_agent_is_used_where_it_is_the_only_agent() -> None:
    assert choose_agent([DEMO], None, "claude-code", "sonnet") == AgentChoice(DEMO, is_demo_agent=True)
    assert choose_agent(ALL, DEMO, "gemini-cli", "") == AgentChoice(DEMO, is_demo_agent=True)
    assert choose_agent(ALL, DEMO, "claude-code", "") == AgentChoice(CLAUDE)
    with pytest.raises(NoMatchingAgent):
        choose_agent([DEMO], None, "claude-cod", "")


def test_every_node_without_an_agent_is_named() -> None:
    inner = node("third", "agent", prompt="x", runner="nobody")
    part = {"interface": {}, **body([inner])}
    nodes = [
        node("first", "agent", prompt="x", runner="codex"),
        node("second", "agent", prompt="x", runner="amp"),
        node("part", "component", componentRef="part"),
    ]
    missing, _ = choose_agents(load_workflow(workflow(nodes, components={"part": part})).checked, ALL, None)
    assert ["“second”" in missing[0], "“third”" in missing[1]] == [True, True]
    assert len(missing) == 2


def test_agent_of_run_precedes_profile_named_like_runner() -> None:
    called = AgentProfile(name="claude-code", agent_type="claude_cli")
    assert choose_agent([called, CLI], CLI, "claude-code", "").profile is CLI
    assert choose_agent([CLI, called], None, "claude-code", "").profile is called
    assert choose_agent([CLI, called, CODEX], CODEX, "claude-code", "").profile is called
