"""The restart drills of one published agent: a complete Kandev, the agent and a loopback model, killed in turn.

Each drill checks what must hold for every agent (nothing lost, nothing twice, no false claim) and returns in a few
words what Kandev reported about this one. What the agent remembers is read from the model's request log, never from its
answers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.drills.deployment import ApiError, Deployment, Session
from tests.real_agents.homes import AGENT_TYPES, RealAgent, real_agent
from tests.real_agents.model_server import ModelServer
from tests.waiting import eventually

HISTORY: Final = "EXECUTION HISTORY"
"""The heading of the history in a prompt."""
PATIENCE: Final = 150
"""Timeout in seconds for an agent's reaction."""
QUESTION: Final = "what was the word?"


@dataclass
class RealAgentDrill:
    """One agent in a running deployment, with a conversation in which it was told a word."""

    deployment: Deployment
    model: ModelServer
    name: str
    """A key of ``AGENT_TYPES``."""
    home: Path
    """The directory of the agent's HOME."""
    can_ask: bool = True
    """Whether it asks for permission when its model wants it to."""
    word_number: int = 0
    """Number of conversations begun; each has its own word."""
    asks_first: bool = False
    """Whether a prompt waited for a user's choice because the conversation was lost."""
    known: int = 0
    """Number of starts before the kill."""
    agent: RealAgent = field(init=False)
    session: Session = field(init=False)

    @property
    def word(self) -> str:
        """Return the word that the agent was told to remember."""
        return f"walrus-{self.word_number}"

    def begin(self, **env: str) -> None:
        """Start the agent, with ``env`` added to its own environment, and tell it a word."""
        self.word_number += 1
        self.agent = real_agent(self.name, self.home / f"home-{self.word_number}", self.model.url)
        profile = {
            "agent_type": AGENT_TYPES[self.name],
            "command": list(self.agent.argv),
            "env": {**self.agent.env, **env},
        }
        self.session = self.deployment.start_session(f"remember the word {self.word}, answer ok", profile)
        self.wait_for_end(0)
        self.wait_for_notes()

    def wait_for_notes(self) -> None:
        """Wait until the agent has stored what it was told; some do so after they have answered."""
        if self.agent.keeps:
            eventually(lambda: self.agent.has_kept(self.word), timeout=30, describe="the agent has stored the word")

    def ends(self) -> list[str]:
        """Return the name of each turn's end event, oldest first."""
        return self.session.turn_ends()

    def wait_for_end(self, before: int) -> str:
        """Wait until a turn has ended after ``before`` others; return how it ended."""
        eventually(lambda: len(self.ends()) > before, timeout=PATIENCE, describe=f"{self.name} has ended its turn")
        return self.ends()[before].removeprefix("session.run.")

    def hold(self, mark: str) -> str:
        """Send a prompt that the model holds back, and wait until the agent is in its turn; return the prompt."""
        text = f"HOLD on, {self.word} {mark}"
        self.model.hold()
        self.session.prompt(text)
        eventually(
            lambda: self.model.holds(f"{self.word} {mark}"),
            timeout=PATIENCE,
            describe="the model holds the request of the prompt",
        )
        eventually(lambda: self.session.prompts()[-1]["state"] == "delivered", describe="the prompt is delivered")
        return text

    def times_sent(self, text: str) -> int:
        """Return how often the model received this prompt; an agent may put context before it."""
        return sum(user_text.endswith(text) for user_text in self.model.user_texts)

    def kill(self) -> None:
        """Kill control plane, agentctl, guard and agent with SIGKILL."""
        self.known, self.asks_first = len(self.starts()), False
        self.deployment.kill_server()
        self.session.kill_everything()
        self.model.release()

    def ask(self) -> str:
        """Ask for the word; return where the agent had it from by the model's log: *itself*, *history* or *nowhere*.

        If the conversation turns out to be lost, the prompt must wait for a user's choice, which is *auto*. *failed*
        means that the turn itself shows that the conversation is lost.
        """
        before, ended = len(self.model.requests), len(self.ends())
        self.session.prompt(f"{QUESTION} ({self.name})")
        if self.session.wait_for_turn(ended, PATIENCE) is None:
            self.asks_first = True
            self.deployment.api("POST", f"{self.session.path}/resume/", {"mode": "auto"})
        if (end := self.wait_for_end(ended)) == "failed":
            return end
        assert end == "completed"
        requests = [request for request in self.model.requests[before:] if QUESTION in request]
        assert requests, "the model was not asked"
        if any(HISTORY in request for request in requests):
            return "history"
        return "itself" if any(f"remember the word {self.word}" in request for request in requests) else "nowhere"

    def version(self) -> str:
        """Return the version that the agent has reported."""
        agents = [one["evidence"].get("agent") or {} for one in self.session.receipts()]
        return next((str(one["version"]) for one in agents if one.get("version")), "")

    def starts(self) -> list[dict[str, Any]]:
        """Return the receipts of starts, oldest first, without take-overs of a running agent."""
        return [one for one in self.session.receipts() if one["kind"] != "reattached"]

    def receipts(self) -> str:
        """Return the kinds of the receipts since the kill, each with its proof or the reason of its failure."""
        return ", then ".join(map(_in_words, self.starts()[self.known :]))


def _in_words(receipt: Mapping[str, Any]) -> str:
    why = receipt["reason" if receipt["kind"] == "failed" else "verified"]
    return f"{receipt['kind']} ({why})" if why != "none" else str(receipt["kind"])


def reattach(drill: RealAgentDrill) -> str:
    """Drill A: kill the control plane; the turn ends before it is back."""
    starts = drill.session.journal().count('"kind":"agent.started"')
    ended, received = len(drill.ends()), len(drill.session.agent_text())
    text = drill.hold("reattach")
    receipts = len(drill.session.receipts())
    drill.deployment.kill_server()
    turns = drill.session.journal().count('"kind":"turn.completed"')
    drill.model.release()
    eventually(
        lambda: drill.session.journal().count('"kind":"turn.completed"') > turns,
        timeout=PATIENCE,
        describe="the agent ends its turn by itself",
    )
    drill.deployment.serve()
    assert drill.wait_for_end(ended) == "completed"
    assert drill.session.journal().count('"kind":"agent.started"') == starts, "the agent runs in another process"
    assert drill.times_sent(text) == 1, "the prompt was lost or sent again"
    assert drill.session.agent_text()[received:].endswith("ok")
    assert drill.session.agent_text()[received:].count("ok") == 1, "the answer was lost or stored twice"
    # The journal may be read before the receipt is written.
    eventually(
        lambda: len(drill.session.receipts()) > receipts,
        timeout=30,
        describe="a receipt says that the agent was reattached",
    )
    return _in_words(drill.session.receipts()[-1])


def resume(drill: RealAgentDrill) -> str:
    """Drill B: kill everything in mid-turn."""
    text = drill.hold("resume")
    drill.kill()
    recovered = drill.deployment.recover()["sessions"]
    [row] = [row for row in recovered if row["session_id"] == drill.session.id]
    drill.deployment.serve()
    assert drill.session.prompts()[-1]["state"] == "interrupted"
    assert drill.ends().count("session.run.interrupted") == 1
    found = _memory(drill, str(row["receipt_kind"]))
    assert drill.times_sent(text) == 1, "the prompt was sent again"
    return found


def lazy_resume(drill: RealAgentDrill) -> str:
    """Drill F: kill everything while the agent is idle; only the next prompt may start it."""
    drill.kill()
    manual = {"KANDEV_RECOVERY_POLICY": "manual"}
    drill.deployment.recover(env=manual)
    drill.deployment.serve(manual)
    assert not drill.session.status()["is_agent_running"]
    assert not drill.session.processes(), "the agent was started without a request"
    found = _memory(drill)
    starts = 2 if drill.asks_first else 1
    if found.startswith("refused"):
        starts = 0
    assert len(drill.starts()) - drill.known == starts
    return found


def lost_store(drill: RealAgentDrill) -> str:
    """Drill C: kill everything and delete what the agent has stored."""
    drill.kill()
    home = Path(drill.agent.env["HOME"])
    home.rename(home.with_name("lost"))
    real_agent(drill.name, home, drill.model.url)
    for path in Path(drill.session.row["worktree_path"]).glob(".[!.]*"):  # some keep their conversations there
        if path.name == ".git":
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    drill.deployment.recover()
    drill.deployment.serve()
    return _memory(drill)


def cancel(drill: RealAgentDrill) -> str:
    """Drill D: cancel a turn while the model answers."""
    ended = len(drill.ends())
    drill.hold("cancel")
    drill.deployment.api("POST", f"{drill.session.path}/cancel/", {})

    def has_result() -> bool:
        return len(drill.ends()) > ended or bool(drill.session.status()["cancel_ignored_since"])

    eventually(has_result, timeout=PATIENCE, describe="the turn ends, or Kandev says that the cancel is ignored")
    ignored = len(drill.ends()) == ended
    drill.model.release()
    end = drill.wait_for_end(ended)
    drill.session.wait_for("WAITING_FOR_INPUT")
    return f"ignored, {end} later" if ignored else end


def permission(drill: RealAgentDrill) -> str:
    """Drill E: kill the control plane while a permission request is open, then answer it."""
    made = Path(drill.session.row["worktree_path"]) / "made-by-the-agent"
    ended = len(drill.ends())
    drill.session.prompt(f"{'With my APPROVAL, ' if drill.can_ask else ''}RUN echo once >> {made}")
    request = _answer_after_a_restart(drill, ended, lambda one: {"option_id": _allowing(one)})
    assert made.read_text() == "once\n", "the command ran twice, or not at all"
    return "kept, answered once" if request else "runs unasked"


def question(drill: RealAgentDrill) -> str:
    """Kill the control plane while a question is open, then answer it."""
    ended, calls, requests = len(drill.ends()), len(drill.model.calls), len(drill.model.requests)
    drill.session.prompt(f"QUESTION for me, please ({drill.word})")
    was_answered = _answer_after_a_restart(drill, ended, _filled_in)
    if len(drill.model.calls) == calls:
        return "has no tool"
    if not was_answered:
        return "does not arrive"
    assert any("Blue" in request for request in drill.model.requests[requests:]), "the model was not told the answer"
    return "kept, answered once"


def _memory(drill: RealAgentDrill, receipt: str = "") -> str:
    """Ask for the word and return the result; check that Kandev's receipt is true.

    ``receipt`` is its kind, if it is known.
    """
    status = drill.session.status()
    if status["requires_new_session"]:
        try:
            drill.session.prompt(QUESTION)
        except ApiError as refused:
            assert refused.status == 409
        else:
            raise AssertionError("a session that needs a new one takes prompts")
        assert receipt not in ("loaded", "resumed", "injected", "reattached")
        return f"refused: {status['resume_reason']}"
    source = drill.ask()
    kind = drill.starts()[-1]["kind"]
    claimed = {"loaded": "itself", "resumed": "itself", "injected": "history", "failed": "failed"}.get(kind, "nowhere")
    assert source == claimed, f"Kandev says {drill.receipts()}, but the agent has the word from {source}"
    return drill.receipts() + (", asked first" if drill.asks_first else "")


def _answer_after_a_restart(
    drill: RealAgentDrill, ended: int, answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> bool:
    """Wait for a request, kill the control plane, and answer twice; return False if the turn just ended."""
    permissions = f"{drill.session.path}/permissions/"

    def pending() -> list[Any]:
        return list(drill.deployment.api("GET", f"{permissions}?state=pending")["results"])

    eventually(
        lambda: pending() or len(drill.ends()) > ended,
        timeout=PATIENCE,
        describe="the agent asks for permission, or its turn ends",
    )
    if not (before := pending()):
        assert drill.wait_for_end(ended) == "completed"
        return False
    drill.deployment.kill_server()
    drill.deployment.serve()
    after = pending()
    assert [(one["id"], one["resume_token"]) for one in after] == [(one["id"], one["resume_token"]) for one in before]
    body = {"resume_token": after[0]["resume_token"], **answer(after[0])}
    for _ in range(2):
        drill.deployment.api("POST", f"{permissions}{after[0]['id']}/", body)
    assert drill.wait_for_end(ended) == "completed"
    assert f'"permission_id":"{after[0]["id"]}"' in drill.session.journal()
    resolved = [line for line in drill.session.journal().splitlines() if '"permission.resolved"' in line]
    assert sum(after[0]["id"] in line for line in resolved) == 1
    return True


def _allowing(request: Mapping[str, Any]) -> str:
    return str(next(one["option_id"] for one in request["options"] if one["kind"] == "allow_once"))


def _filled_in(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer to a question, with *Blue* for each choice."""
    if not request["question"]:
        return {"option_id": next(one["option_id"] for one in request["options"] if one["name"] == "Blue")}
    content = {}
    for name, kind in request["question"]["schema"]["properties"].items():
        choices = json.dumps(kind)
        if "Blue" in choices:
            content[name] = "Blue"
    return {"option_id": "accept", "content": content}


Drill = Callable[[RealAgentDrill], str]
DRILLS: Final[Mapping[str, Drill]] = {
    "cancel": cancel,
    "reattach": reattach,
    "permission": permission,
    "question": question,
    "lazy resume": lazy_resume,
    "resume": resume,
    "lost store": lost_store,
}
"""In an order in which one session serves for most of them."""
