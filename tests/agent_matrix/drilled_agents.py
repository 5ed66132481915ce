"""The expected results of the drills for each published agent, and the run of an agent's drills."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.agent_matrix.drills import DRILLS, RealAgentDrill
from tests.agent_matrix.table import Row
from tests.drills.deployment import Deployment
from tests.real_agents.homes import AGENT_TYPES
from tests.real_agents.model_server import ModelServer, running_model

UNASKED: Final = "runs unasked"
_USUAL: Final[Mapping[str, str]] = {
    "reattach": "reattached (same_process)",
    "resume": "loaded (replay)",
    "lost store": "failed (token_rejected), then fresh",
    "cancel": "cancelled",
    "permission": "kept, answered once",
    "question": "has no tool",
    "lazy resume": "loaded (replay)",
}


@dataclass(frozen=True)
class DrilledAgent:
    """One agent: its differences from the usual results, and what it needs to ask before it runs a command."""

    differs: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""

    def expected(self, drill: str) -> str:
        """Return the expected result of a drill."""
        return self.differs.get(drill, _USUAL[drill])


_FORGETS: Final = "failed (token_rejected), then injected (first_turn)"
_SILENT: Final = "does not arrive"
_LATE: Final = "ignored, cancelled later"
_REFUSED: Final = "refused: not_resumable"
AGENTS: Final[Mapping[str, DrilledAgent]] = {
    "agentao": DrilledAgent(
        {
            "resume": _FORGETS,
            "lost store": _FORGETS,
            "cancel": _LATE,
            "question": _SILENT,
            "lazy resume": f"{_FORGETS}, asked first",
        }
    ),
    "claude-agent-acp": DrilledAgent({"question": "kept, answered once"}),
    "codex": DrilledAgent(
        {
            "resume": "resumed (first_turn)",
            "lost store": "failed (token_rejected)",
            "permission": UNASKED,
            "question": _SILENT,
            "lazy resume": "resumed (first_turn)",
        }
    ),
    "codex-acp": DrilledAgent({"question": _SILENT}, asks={"INITIAL_AGENT_MODE": "read-only"}),
    "deepagents": DrilledAgent({"resume": _REFUSED, "lost store": _REFUSED, "cancel": _LATE, "lazy resume": _REFUSED}),
    "kimi-code": DrilledAgent({"question": "kept, answered once"}),
    "opencode": DrilledAgent(asks={"OPENCODE_PERMISSION": '{"bash":"ask"}'}),
    "qwen-code": DrilledAgent({"lost store": "refused: context_mismatch"}),
}


def run_drills(name: str, home: Path, drills: Collection[str] = tuple(DRILLS)) -> Row:
    """Run an agent's drills; a failed drill leaves its cell empty, and the next starts with a new deployment."""
    row = Row(AGENT_TYPES[name])
    with running_model() as model:
        left = [drill for drill in DRILLS if drill in drills]
        while left:
            with _deployed(name, home / f"kandev-{len(left)}", model) as drill:
                _run_until_failure(drill, left, row)
    return row


def _run_until_failure(drill: RealAgentDrill, left: list[str], row: Row) -> None:
    while left:
        name = left.pop(0)
        try:
            if not drill.word_number or drill.session.status()["requires_new_session"]:
                drill.begin(**AGENTS[drill.name].asks)
            row.cells[name] = DRILLS[name](drill)
            row.version = drill.version()
        except Exception as error:  # noqa: BLE001  (whatever an agent does, the other drills are still run)
            row.failures.append(f"{name}: {type(error).__name__}: {error}\n{drill.deployment.log()[-2000:]}")
            return


@contextmanager
def _deployed(name: str, home: Path, model: ModelServer) -> Iterator[RealAgentDrill]:
    home.mkdir(parents=True)
    deployment = Deployment(home)
    deployment.env |= {"KANDEV_CONTINUE": "off"}
    try:
        deployment.prepare()
        deployment.serve()
        yield RealAgentDrill(deployment, model, name, home, can_ask=AGENTS[name].expected("permission") != UNASKED)
    finally:
        model.release()
        deployment.close()


def surprises(rows: Sequence[Row], drills: Collection[str] = tuple(DRILLS)) -> list[str]:
    """Return where agents did not behave as expected, with the failures of their drills."""
    found = []
    for row in rows:
        agent = next(AGENTS[name] for name, kind in AGENT_TYPES.items() if kind == row.agent_type)
        cells = {drill: row.cells.get(drill, "nothing") for drill in drills}
        found += [
            f"{row.agent_type}, {drill}: expected {agent.expected(drill)!r}, got {cells[drill]!r}"
            for drill in drills
            if cells[drill] != agent.expected(drill)
        ]
        found += [f"{row.agent_type}, {failure}" for failure in row.failures]
    return found
