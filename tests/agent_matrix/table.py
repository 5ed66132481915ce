"""The two tables of the agent matrix, and the document around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from scripts.documents.markdown import markdown_table
from tests.services import ROOT

DOCUMENT: Final = ROOT / "docs" / "agent-matrix.md"
COLUMNS: Final = (
    "start",
    "memory after kill -9",
    "replay on load",
    "lost store",
    "resume",
    "bare resume",
    "cancel",
    "permission",
    "question",
    "modes",
    "usage",
    "commands",
)
_HEADER: Final = """\
# Agent matrix

<!-- Written by `make agent-matrix`. Change tests/agent_matrix/, not this file. -->

What each agent that `make agents` installs did on {day}, with a model on the loopback that answers by rules. A cell \
is measured or empty. Each agent has a fresh home and is configured as in \
[homes.py](../tests/real_agents/homes.py), where Codex is configured to ask for nothing, and Deep Agents to ask before \
it runs commands. `make agent-drills` writes the [drills](#drills). What other agents publish is in \
[agents.md](agents.md#what-they-offer). Times are those of a machine with {machine}: compare them with each other only.

- *Start*: seconds from the start of the process until it has a new conversation.
- *Memory after kill -9*: the agent and all its processes are killed, then Kandev's driver restores the conversation \
and asks for the word that was said in it. *Yes*: the agent sent that word to the model, as the model's request log \
shows; what the agent answers does not count.
- *Replay on load*: whether the restored agent repeated the user's prompt, which proves that it has the conversation.
- *Lost store*: what happens if the agent's home is replaced by a fresh one. *Rejected*: it reports that the \
conversation is gone. *Claims success*: it reports that it has the conversation.
- *Resume*, *bare resume*: seconds from the start of a killed agent until it has its conversation again; by Kandev's \
driver, and by a minimal client with the same requests. The median of {rounds} rounds each.
- *Cancel*: stop reason of a turn that was cancelled while the model was answering, and seconds until it ended. The \
model would answer {hold} seconds after the prompt.
- *Permission*: whether it asks before it runs a command in its shell.
- *Question*: whether its question to the user arrives as an elicitation. *No tool*: it offers its model none.
- *Modes*: the modes that it offers. *Usage*: whether it reports tokens, in updates or at the end of a turn.
- *Commands*: how many slash commands it announces.

"""
DRILLS_TITLE: Final = "## Drills"
DRILL_COLUMNS: Final = ("reattach", "resume", "lost store", "cancel", "permission", "question", "lazy resume")
_DRILLS: Final = """\
## Drills

<!-- Written by `make agent-drills`. -->

What Kandev reported about each agent on {day}, after both had been killed. A cell is empty if the drill failed or \
was not run. Every drill also requires that no prompt and no command arrives twice, that nothing is lost, and that \
Kandev's statement about the agent's memory is true, judged by what the agent sent to the model according to its \
request log. Codex, OpenCode and Deep Agents are configured to ask before they run commands.

- *Reattach*: the control plane is killed during a turn; the turn ends while the control plane is down.
- *Resume*: control plane, agentctl and agent are killed during a turn.
- *Lost store*: the same while the agent is idle, and its stored conversations are removed.
- *Cancel*: how a turn ended that was cancelled while the model was answering. *Ignored*: Kandev reported that the \
turn continued.
- *Permission*, *question*: it is asked, the control plane is killed and restarted, and it is answered twice.
- *Lazy resume*: everything is killed while the agent is idle, with the policy *manual*; the next prompt starts it. \
*Asked first*: the conversation was lost, and the prompt waited until its user chose to continue.

"""


@dataclass
class Row:
    """The results of one agent."""

    agent_type: str
    version: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    """By column; missing ones were not measured."""
    failures: list[str] = field(default_factory=list)
    """The reasons why cells are empty."""


def matrix_document(rows: Sequence[Row], *, day: str, machine: str, rounds: int, hold: int) -> str:
    """Return the document; raise KeyError for a cell without a column.

    ``machine``: its cores and load, ``rounds``: those of the resume times, ``hold``: seconds until the model answers.
    """
    header = _HEADER.format(day=day, machine=machine, rounds=rounds, hold=hold)
    return header + _table(COLUMNS, rows)


def drills_document(rows: Sequence[Row], *, day: str) -> str:
    """Return the section of the drills; raise KeyError for a cell without a column."""
    return _DRILLS.format(day=day) + _table(DRILL_COLUMNS, rows)


def with_matrix(text: str, matrix: str) -> str:
    """Return the whole document with its matrix replaced."""
    return f"{matrix}\n{DRILLS_TITLE}{text.partition(DRILLS_TITLE)[2]}" if DRILLS_TITLE in text else matrix


def with_drills(text: str, drills: str) -> str:
    """Return the whole document with its section of drills replaced."""
    return f"{text.partition(DRILLS_TITLE)[0].rstrip()}\n\n{drills}"


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    lines = [
        (f"`{row.agent_type}`", row.version, *(row.cells.get(column, "") for column in columns))
        for row in sorted(rows, key=lambda row: row.agent_type)
    ]
    for row in rows:
        if unknown := set(row.cells) - set(columns):
            raise KeyError(*unknown)
    return markdown_table(("type", "version", *columns), lines) + "\n"
