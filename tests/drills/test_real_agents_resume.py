"""Published agents are told a word, killed with everything around them, resumed, and asked for the word.

One Kandev and one loopback model serve them all, so that they cost one start and not nine.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.plugins import agent_types
from tests.drills.deployment import Deployment, Session, agent_text
from tests.real_agents.homes import RealAgent, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.services import missing, require
from tests.waiting import eventually

AGENT_TYPES: Final = {
    "codex-acp": "codex",
    "kimi-code": "kimi",
    "opencode": "opencode",
    "qwen-code": "qwen",
    "codex": "codex_cli",
    "agentao": "agentao",
    "deepagents": "deepagents",
}
REMEMBERING: Final = ("codex-acp", "opencode", "kimi-code", "qwen-code", "codex")
FORGETFUL: Final = ("agentao", "deepagents")
ROBBED: Final = "qwen-code robbed"
"""An agent that reports success although its stored conversation was removed."""
HISTORY: Final = "EXECUTION HISTORY"
"""The heading in a prompt that contains the history of the conversation."""
BANNER: Final = """
from sessions_app.models import TaskSession
from sessions_app.pages.session_state import session_context
print(session_context(TaskSession.objects.get(id="{}"))["situation"].text)
"""


@dataclass
class Story:
    """What happened to one agent."""

    name: str
    agent: RealAgent
    session: Session
    word: str
    recovered: Mapping[str, Any] = field(default_factory=dict)
    """Its row of the sweep."""
    prompts: list[str] = field(default_factory=list)
    """The states of its prompts after the sweep."""
    receipt: Mapping[str, Any] = field(default_factory=dict)
    """Its newest receipt after the sweep."""
    answer: str = ""
    banner: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Drill:
    """The deployment, the model and every agent's story."""

    deployment: Deployment
    model: ModelServer
    home: Path
    stories: dict[str, Story] = field(default_factory=dict)

    def begin(self, name: str) -> None:
        """Start an agent and tell it a word."""
        published = name.partition(" ")[0]
        agent = real_agent(published, self.home / name.replace(" ", "-"), self.model.url)
        profile = {"agent_type": AGENT_TYPES[published], "command": list(agent.argv), "env": dict(agent.env)}
        word = f"walrus-{len(self.stories)}"
        session = self.deployment.start_session(f"remember the word {word}, answer ok", profile)
        self.stories[name] = Story(name, agent, session, word)

    def put_to_work(self, story: Story) -> None:
        """Wait for its first turn and for its record of it; agents that remember get another turn."""
        eventually(
            lambda: "session.run.completed" in story.session.names(),
            timeout=120,
            describe=f"the first turn of {story.name} is over",
        )
        if story.agent.keeps:
            eventually(lambda: story.agent.has_kept(story.word), describe=f"{story.name} has written it down")
        if story.name not in REMEMBERING:
            return
        story.session.prompt(f"HOLD on, {story.word}")
        eventually(lambda: self.model.holds(story.word), timeout=60, describe=f"{story.name} is in mid-turn")
        eventually(lambda: story.session.prompts()[-1]["state"] == "delivered", describe="the ledger says so")

    def kill(self) -> None:
        """SIGKILL for the control plane, every agentctl, every guard and every agent."""
        self.deployment.kill_server()
        for story in self.stories.values():
            story.session.kill_everything()
        if ROBBED in self.stories:
            shutil.rmtree(Path(self.stories[ROBBED].agent.env["HOME"]) / ".qwen" / "projects")
        self.model.release()

    def recover(self) -> None:
        """Run a sweep and record the result of each session."""
        rows = {row["session_id"]: row for row in self.deployment.recover()["sessions"]}
        for story in self.stories.values():
            story.recovered = rows[story.session.id]
            story.prompts = [row["state"] for row in story.session.prompts()]
            story.receipt = story.session.receipts()[-1]

    def ask(self, story: Story) -> None:
        """Ask for the word, if the session takes prompts."""
        story.status = story.session.status()
        if story.name not in REMEMBERING:
            done = self.deployment.manage("shell", "-v", "0", "-c", BANNER.format(story.session.id))
            story.banner = done.stdout.strip() or done.stderr[-500:]
        if story.recovered["receipt_kind"] == "failed" and story.status["requires_new_session"]:
            return
        if story.name in REMEMBERING or story.name == "agentao":
            self.ask_for_the_word(story)

    def ask_for_the_word(self, story: Story) -> None:
        """Prompt for it, and wait for the answer."""
        before = len(story.session.events())
        story.session.prompt(f"what was the word? ({story.name})")
        eventually(
            lambda: "session.run.completed" in [event["name"] for event in story.session.events()[before:]],
            timeout=90,
            describe=f"{story.name} has answered",
        )
        story.answer = agent_text(story.session.events()).rpartition("ok")[2]


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """All agents that are installed here, told, killed, resumed and asked."""
    home = tmp_path_factory.mktemp("published")
    deployment = Deployment(home)
    deployment.env |= {"KANDEV_CONTINUE": "off", "KANDEV_START_CONCURRENCY": "2"}
    try:
        with running_model() as model:
            made = Drill(deployment, model, home)
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


def story_of(drill: Drill, name: str) -> Story:
    require(name.partition(" ")[0])
    if name not in drill.stories:
        pytest.skip(_lacking(name))
    return drill.stories[name]


@pytest.mark.real_agent
@pytest.mark.parametrize("name", REMEMBERING)
def test_agent_killed_in_mid_turn_remembers_the_conversation(name: str, drill: Drill) -> None:
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
def test_replay_proves_the_loaded_conversation(name: str, drill: Drill) -> None:
    receipt = story_of(drill, name).receipt
    assert (receipt["kind"], receipt["verified"]) == ("loaded", "replay")


@pytest.mark.real_agent
def test_agent_without_resume_support_shows_a_banner(drill: Drill) -> None:
    story = story_of(drill, "deepagents")
    assert story.banner == "This agent doesn’t support resuming. Start a new session."
    assert story.status["requires_new_session"]
    assert story.recovered["receipt_kind"] not in ("loaded", "resumed", "reattached", "injected")


@pytest.mark.real_agent
def test_agent_that_reports_a_lost_conversation_is_not_shown_as_resumed(drill: Drill) -> None:
    story = story_of(drill, "agentao")
    kinds = [receipt["kind"] for receipt in story.session.receipts()]
    assert not {"loaded", "resumed"} & set(kinds), kinds
    assert kinds[-1] == "injected"
    assert story.word in story.answer
    assert any(HISTORY in request for request in drill.model.heard_about(story.word)), "nobody told it"


@pytest.mark.real_agent
def test_agent_that_falsely_claims_a_conversation_is_not_shown_as_resumed(drill: Drill) -> None:
    story = story_of(drill, ROBBED)
    receipt = story.receipt
    assert (receipt["kind"], receipt["reason"]) == ("failed", "context_mismatch")
    assert "is not the one shown here" in story.banner
    assert story.session.execution["resume_token"], "the token was thrown away"


@pytest.mark.real_agent
def test_log_contains_no_resume_token(drill: Drill) -> None:
    for story in drill.stories.values():
        told = json.dumps(story.session.events())
        assert not re.search(r'"resume_token"', told), story.name
