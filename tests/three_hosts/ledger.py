"""What people have asked of the agents, compared with what the agents got and what the log has of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from tests.drills.deployment import Session
from tests.waiting import eventually

SETTLED = frozenset({"done", "interrupted", "dismissed"})
"""An interrupted prompt is dismissed once its turn is continued."""


class Ledger:
    """The prompts to one session, each of its own kind."""

    def __init__(self, session: Session, first: str):
        self.session = session
        self.texts = [first]

    def ask(self, seconds: int) -> None:
        """Send a prompt that keeps the agent busy for some seconds, and that no other one is like."""
        text = f"work {seconds} at 4\nremember word{len(self.texts)}"
        self.texts.append(text)
        self.session.prompt(text)

    def has_begun(self) -> bool:
        """Return whether the agent is proven to have the last prompt: before, a loss would leave that in doubt."""
        states = {row["text"]: row["state"] for row in self.session.prompts()}
        return states.get(self.texts[-1]) in ("delivered", "done")

    def wait_until_settled(self, timeout: float = 180) -> None:
        """Wait until no prompt and no turn is open any more."""
        eventually(self._is_settled, timeout=timeout, describe=f"every prompt to {self.session.id} is settled")

    def _is_settled(self) -> bool:
        states = {row["state"] for row in self.session.prompts()}
        return states <= SETTLED and not self.session.deployment.rows(
            "SELECT 1 FROM session_runs WHERE session_id = ? AND ended_at IS NULL", self.session.id.replace("-", "")
        )

    def check(self, *, has_lost_power: bool) -> None:
        """Check that every prompt reached the agent once, and that the log has what it said, once and in order.

        ``has_lost_power``: its machine ended with it in the middle of a turn, so the last words may be missing.
        """
        got = Counter(self._prompts_of_agent())
        assert {text: got[text] for text in self.texts} == dict.fromkeys(self.texts, 1)
        rows = self.session.prompts()
        assert Counter(row["text"] for row in rows if row["kind"] != "continue") == Counter(self.texts)
        said, logged = self.session.agent_log().splitlines(), self.session.agent_text().splitlines()
        if has_lost_power:
            assert _is_subsequence(logged, said), (logged, said)
        else:
            assert logged == said

    def _prompts_of_agent(self) -> list[str]:
        files = sorted(self.session.agent_home.glob("*.jsonl"))
        entries = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [entry["text"] for entry in entries if entry["role"] == "user"]


def _is_subsequence(part: Sequence[str], whole: Sequence[str]) -> bool:
    rest = iter(whole)
    return all(line in rest for line in part)
