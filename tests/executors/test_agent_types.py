"""The claims in each agent type are consistent, and agree with the agent if it is installed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from executors_app.agentctl.daemon import load_drivers
from executors_app.agentctl.drivers import StartFailed, StartRequest, acp
from executors_app.agents import CAPABILITIES, AgentType
from executors_app.models import AgentProfile
from executors_app.plugins import agent_types, listed_agent_types, missing_programs
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agents.hosts import RecordingHost
from tests.real_agents.bare_agent import bare_agent, offered_capabilities
from tests.real_agents.homes import AGENT_TYPES, FORGETFUL, REAL_AGENTS, RealAgent, real_agent
from tests.real_agents.model_server import running_model

KINDS = sorted(agent_types().values(), key=lambda kind: kind.name)
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
REGISTRY_AGENTS = """
agoragentic-acp amp-acp antigravity-acp auggie autohand claude-acp cline codebuddy-code codex-acp cortex-code
corust-agent crow-cli cursor deepagents devin dimcode dirac factory-droid fast-agent gemini github-copilot-cli
glm-acp-agent goose grok-build harn junie kilo kimi minion-code mistral-vibe nova opencode pi-acp poolside qoder
qwen-code sigit stakpak vtcode
"""
"""The agents listed in the ACP registry in August 2026."""
RUN_BY_TESTS = {name for published, name in AGENT_TYPES.items() if published in {**REAL_AGENTS, **FORGETFUL}}
SEED_AGENTS = {"claude_code", "codex", "copilot", "auggie", "gemini", "amp", "opencode"}


def test_every_seed_agent_is_known() -> None:
    assert {kind.name for kind in KINDS if kind.seed} == SEED_AGENTS


def test_every_registry_agent_is_known_once() -> None:
    assert sorted(kind.registry for kind in KINDS if kind.registry) == REGISTRY_AGENTS.split()


def test_popular_agents_outside_the_registry_are_known() -> None:
    assert {"hermes", "kiro", "openhands", "goose"} <= set(agent_types())


def test_only_agents_run_by_tests_have_measured_offers() -> None:
    assert {kind.name for kind in KINDS if kind.offers and kind.offers.source == "measured"} == RUN_BY_TESTS


def test_undocumented_offers_are_unknown() -> None:
    kiro, crow = agent_types()["kiro"], agent_types()["crow"]
    assert [kiro.offers_capability(name) for name in ("load", "delete")] == [True, None]
    assert (crow.offers, crow.offers_capability("load")) == (None, None)


@EACH
def test_claims_are_consistent(kind: AgentType) -> None:
    assert kind.title
    assert kind.driver in load_drivers()
    assert not kind.argv or kind.needs in ((), (kind.argv[0],)), "an agent type needs only the program that it starts"
    assert not kind.errs_about_gone or kind.gone_patterns
    assert not kind.offers or (kind.offers.offered | kind.offers.lacking) <= set(CAPABILITIES)
    assert not kind.offers or kind.supports_session_resume or not {"load", "resume"} & kind.offers.offered
    assert not any(re.search(name, r"KEY|TOKEN|SECRET|PASSWORD") for name in kind.env), "secrets belong in a profile"


@EACH
def test_gone_patterns_match_only_lost_conversations(kind: AgentType) -> None:
    ordinary = ("Internal error", "Authentication required", "the database is locked", "Connection closed", "")
    for pattern in kind.gone_patterns:
        assert [text for text in ordinary if re.search(pattern, text, re.IGNORECASE)] == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.seed], ids=lambda kind: kind.name)
def test_only_differences_to_the_seed_give_a_reason(kind: AgentType) -> None:
    assert kind.seed is not None
    ours = (kind.supports_session_resume, kind.history_context_injection)
    assert bool(kind.differs_from_seed) == (ours != (kind.seed.native, kind.seed.history))
    assert kind.notes


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_programs(agent_types()["codex"]) == ["codex-acp"]
    (tmp_path / "codex-acp").write_text("#!/bin/sh\n")
    (tmp_path / "codex-acp").chmod(0o755)
    assert missing_programs(agent_types()["codex"]) == []


def test_installed_agents_are_listed_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "vtcode").write_text("#!/bin/sh\n")
    (tmp_path / "vtcode").chmod(0o755)
    listed = [kind.name for kind, _ in listed_agent_types()]
    assert listed[:4] == ["vtcode", "openai_chat", "custom_acp", "demo"]
    assert listed[4:6] == ["agentao", "agoragentic"]
    assert len(listed) == len(KINDS)


def test_profile_can_replace_the_command_and_add_arguments() -> None:
    profile = AgentProfile(agent_type="codex", args=["-c", "model=x"])
    assert profile.argv() == ["codex-acp", "-c", "model=x"]
    profile.command = ["/opt/codex-acp"]
    assert profile.argv() == ["/opt/codex-acp", "-c", "model=x"]


@pytest.mark.parametrize("runtime", ["local_docker", "remote_docker", "remote", "sprites"])
def test_demo_agent_uses_the_command_of_its_runtime(runtime: str) -> None:
    profile = AgentProfile(agent_type="demo", args=["-v"])
    assert profile.argv(runtime) == ["kandev-demo-agent", "-v"]
    assert profile.argv("local_standalone")[0] == sys.executable
    profile.command = ["/opt/mine"]
    assert profile.argv(runtime) == ["/opt/mine", "-v"]


@pytest.mark.real_agent
@pytest.mark.parametrize("published", sorted({**REAL_AGENTS, **FORGETFUL}))
def test_measured_offers_are_those_of_the_agent(published: str, tmp_path: Path) -> None:
    agent = real_agent(published, tmp_path / "home", "http://127.0.0.1:9/v1")
    with bare_agent(agent.argv, agent.env, str(tmp_path)) as bare:
        initialized = bare.initialize()
    offers = agent_types()[AGENT_TYPES[published]].offers
    assert offers is not None
    assert offered_capabilities(initialized) == offers.offered
    assert (initialized.get("agentInfo") or {}).get("version", offers.version) == offers.version


@pytest.mark.real_agent
@pytest.mark.parametrize(
    ("kind", "published"), [("claude_code", "claude-agent-acp"), ("codex", "codex-acp"), ("opencode", "opencode")]
)
async def test_published_agent_reports_gone_conversation_by_its_patterns(
    kind: str, published: str, tmp_path: Path
) -> None:
    with running_model() as model:
        failed = await _failed_resume(real_agent(published, tmp_path / "home", model.url), kind, tmp_path)
    assert (failed.code, failed.token_valid) == ("token_rejected", False)


@pytest.mark.real_agent
@pytest.mark.parametrize("stored", ["no folder", "an empty folder", "a torn file", "another conversation"])
async def test_agentao_reports_gone_conversation_whatever_its_last_save_left(stored: str, tmp_path: Path) -> None:
    """It saves when its stdin closes: a kill of agentctl may interrupt that at any step."""
    folder = tmp_path / ".agentao" / "sessions"
    if stored != "no folder":
        folder.mkdir(parents=True)
    if stored == "a torn file":
        (folder / "20261130_140000_000000.json.tmp").write_text("{")
    if stored == "another conversation":
        other = {"session_id": "another", "messages": []}
        (folder / "20261130_140000_000000.json").write_text(json.dumps(other))
    agent = real_agent("agentao", tmp_path / "home", "http://127.0.0.1:9/v1")

    failed = await _failed_resume(agent, "agentao", tmp_path)

    assert (failed.code, failed.token_valid) == ("token_rejected", False)


async def _failed_resume(agent: RealAgent, kind: str, folder: Path) -> StartFailed:
    """Ask an agent for a conversation that it does not have; return how its start fails."""
    driver = acp.create(RecordingHost(), {EXECUTION_MARKER: "agent-type-test"})
    request = StartRequest(
        launch_id="launch",
        argv=agent.argv,
        env=agent.env,
        cwd=str(folder),
        strategy="native",
        resume_token="019a0000-0000-7000-8000-000000000000",
        gone_patterns=agent_types()[kind].gone_patterns,
    )
    try:
        with pytest.raises(StartFailed) as failed:
            await driver.start(request)
    finally:
        await driver.stop(1)
    return failed.value
