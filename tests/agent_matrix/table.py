"""The table of the matrix, and the document around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sessions_app.domain.reference_docs import markdown_table
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
[homes.py](../tests/real_agents/homes.py), where Codex is told to ask for nothing. What other agents publish is in \
[agents.md](agents.md#what-they-offer). Times are those of a machine with {machine}: compare them with each other only.

- *Start*: seconds from the start of the process until it has a new conversation.
- *Memory after kill -9*: the agent and all its processes are killed, then Kandev's driver restores the conversation \
and asks for the word that was said in it. *Yes*: the agent sent that word to the model, as the model's request log \
shows; what the agent answers does not count.
- *Replay on load*: whether the restored agent repeated the user's prompt, which proves that it has the conversation.
- *Lost store*: what happens if the agent's home is replaced by a fresh one. *Rejected*: it says that the conversation \
is gone. *Claims success*: it says that it has the conversation.
- *Resume*, *bare resume*: seconds from the start of a killed agent until it has its conversation again; by Kandev's \
driver, and by a minimal client with the same requests. The median of {rounds} rounds each.
- *Cancel*: stop reason of a turn that was cancelled while the model was answering, and seconds until it ended. The \
model would answer {hold} seconds after the prompt.
- *Permission*: whether it asks before it runs a command in its shell.
- *Question*: whether its question to the user arrives as an elicitation. *No tool*: it offers its model none.
- *Modes*: those that it offers. *Usage*: whether it tells of tokens, with updates or with the end of a turn.
- *Commands*: how many slash commands it announces.

"""


@dataclass
class Row:
    """One agent."""

    agent_type: str
    version: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    """By column; one that is missing was not measured."""
    failures: list[str] = field(default_factory=list)
    """Why cells are empty."""


def matrix_document(rows: Sequence[Row], *, day: str, machine: str, rounds: int, hold: int) -> str:
    """Return the document; raises KeyError for a cell without a column.

    ``machine``: its cores and load, ``rounds``: those of the resume times, ``hold``: seconds until the model answers.
    """
    lines = [
        (f"`{row.agent_type}`", row.version, *(row.cells.get(column, "") for column in COLUMNS))
        for row in sorted(rows, key=lambda row: row.agent_type)
    ]
    for row in rows:
        if unknown := set(row.cells) - set(COLUMNS):
            raise KeyError(*unknown)
    return (
        _HEADER.format(day=day, machine=machine, rounds=rounds, hold=hold)
        + markdown_table(("type", "version", *COLUMNS), lines)
        + "\n"
    )
