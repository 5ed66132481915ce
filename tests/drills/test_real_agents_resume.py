"""Published agents are told a word, killed with everything around them, resumed, and asked for the word.

One Kandev and one loopback model serve them all, so that they cost one start and not nine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from executors_app.plugins import agent_types
from tests.drills.deployment import Deployment
from tests.drills.real_agent_drill import (
    FORGETFUL,
    HISTORY,
    REMEMBERING,
    ROBBED,
    AgentStory,
    RealAgentDrill,
)
from tests.real_agents.homes import AGENT_TYPES
from tests.real_agents.model_server import running_model
from tests.services import missing, require


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAgentDrill]:
    """All agents that are installed here, told, killed, resumed and asked."""
    home = tmp_path_factory.mktemp("published")
    deployment = Deployment(home)
    deployment.env |= {"KANDEV_CONTINUE": "off", "KANDEV_START_CONCURRENCY": "2"}
    try:
        with running_model() as model:
            made = RealAgentDrill(deployment, model, home)
            deployment.prepare()
            deployment.serve()
            for name in (*REMEMBERING, *FORGETFUL, ROBBED):
                if not _lacking(name):
                    made.begin(name)
            for story in made.stories.values():
                made.put_to_work(story)
            made.kill()
            made.recover()
            deployment.serve()
            for story in made.stories.values():
                made.ask(story)
            yield made
    finally:
        deployment.close()


def _lacking(name: str) -> str:
    published = name.partition(" ")[0]
    known = AGENT_TYPES[published] in agent_types()
    return missing(published) if known else f"no agent type {AGENT_TYPES[published]}"


def story_of(drill: RealAgentDrill, name: str) -> AgentStory:
    require(name.partition(" ")[0])
    if name not in drill.stories:
        pytest.skip(_lacking(name))
    return drill.stories[name]


@pytest.mark.real_agent
@pytest.mark.parametrize("name", REMEMBERING)
def test_agent_killed_in_mid_turn_remembers_the_conversation(name: str, drill: RealAgentDrill) -> None:
    story = story_of(drill, name)
    assert story.recovered["receipt_kind"] in ("loaded", "resumed"), story.recovered
    assert story.recovered["session_state"] == "WAITING_FOR_INPUT"
    assert story.prompts == ["done", "interrupted"]
    assert story.session.names().count("session.run.interrupted") == 1
    assert story.word in story.answer
    heard = drill.model.heard_about(story.word)
    assert not [request for request in heard if HISTORY in request], "it was told, and did not remember"
    assert drill.model.user_texts.count(f"HOLD on, {story.word}") == 1, "the prompt was sent again"


@pytest.mark.real_agent
@pytest.mark.parametrize("name", [name for name in REMEMBERING if name != "codex"])
def test_replay_proves_the_loaded_conversation(name: str, drill: RealAgentDrill) -> None:
    receipt = story_of(drill, name).receipt
    assert (receipt["kind"], receipt["verified"]) == ("loaded", "replay")


@pytest.mark.real_agent
def test_agent_without_resume_support_shows_a_banner(drill: RealAgentDrill) -> None:
    story = story_of(drill, "deepagents")
    assert story.banner == "This agent doesn’t support resuming. Start a new session."
    assert story.status["requires_new_session"]
    assert story.recovered["receipt_kind"] not in ("loaded", "resumed", "reattached", "injected")


@pytest.mark.real_agent
def test_agent_that_reports_a_lost_conversation_is_not_shown_as_resumed(drill: RealAgentDrill) -> None:
    story = story_of(drill, "agentao")
    kinds = [receipt["kind"] for receipt in story.session.receipts()]
    assert not {"loaded", "resumed"} & set(kinds), kinds
    assert kinds[-1] == "injected"
    assert story.word in story.answer
    assert any(HISTORY in request for request in drill.model.heard_about(story.word)), "nobody told it"


@pytest.mark.real_agent
def test_agent_that_falsely_claims_a_conversation_is_not_shown_as_resumed(drill: RealAgentDrill) -> None:
    story = story_of(drill, ROBBED)
    receipt = story.receipt
    assert (receipt["kind"], receipt["reason"]) == ("failed", "context_mismatch")
    assert "is not the one shown here" in story.banner
    assert story.session.execution["resume_token"], "the token was thrown away"


@pytest.mark.real_agent
def test_log_contains_no_resume_token(drill: RealAgentDrill) -> None:
    for story in drill.stories.values():
        told = json.dumps(story.session.events())
        assert not re.search(r'"resume_token"', told), story.name
