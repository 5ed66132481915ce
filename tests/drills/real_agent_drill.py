"""Steps of a drill with published agents: each is told a word, killed, resumed, and asked for the word."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.drills.deployment import Deployment, Session, agent_text
from tests.real_agents.homes import AGENT_TYPES, RealAgent, real_agent
from tests.real_agents.model_server import ModelServer
from tests.waiting import eventually

REMEMBERING: Final = ("claude-agent-acp", "codex-acp", "opencode", "kimi-code", "qwen-code", "codex")
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
class AgentStory:
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
class RealAgentDrill:
    """The deployment, the model and every agent's story."""

    deployment: Deployment
    model: ModelServer
    home: Path
    stories: dict[str, AgentStory] = field(default_factory=dict)

    def begin(self, name: str) -> None:
        """Start an agent and tell it a word."""
        published = name.partition(" ")[0]
        agent = real_agent(published, self.home / name.replace(" ", "-"), self.model.url)
        profile = {"agent_type": AGENT_TYPES[published], "command": list(agent.argv), "env": dict(agent.env)}
        word = f"walrus-{len(self.stories)}"
        session = self.deployment.start_session(f"remember the word {word}, answer ok", profile)
        self.stories[name] = AgentStory(name, agent, session, word)

    def put_to_work(self, story: AgentStory) -> None:
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

    def ask(self, story: AgentStory) -> None:
        """Ask for the word, if the session takes prompts."""
        story.status = story.session.status()
        if story.name not in REMEMBERING:
            done = self.deployment.manage("shell", "-v", "0", "-c", BANNER.format(story.session.id))
            story.banner = done.stdout.strip() or done.stderr[-500:]
        if story.recovered["receipt_kind"] == "failed" and story.status["requires_new_session"]:
            return
        if story.name in REMEMBERING or story.name == "agentao":
            self.ask_for_the_word(story)

    def ask_for_the_word(self, story: AgentStory) -> None:
        """Prompt for it, and wait for the answer."""
        before = len(story.session.events())
        story.session.prompt(f"what was the word? ({story.name})")
        eventually(
            lambda: "session.run.completed" in [event["name"] for event in story.session.events()[before:]],
            timeout=90,
            describe=f"{story.name} has answered",
        )
        story.answer = agent_text(story.session.events()).rpartition("ok")[2]
