"""Size and cost limits of workflow files and runs, and the budget that one load may spend."""

from __future__ import annotations

from typing import Final, Literal

MAX_BYTES: Final = 1 << 20
"""Bytes of one file."""
MAX_DEPTH: Final = 64
"""Nesting of values in one file, and of components in components."""
MAX_VALUES: Final = 200_000
"""Values in one file; an alias counts each time it is used."""
MAX_NODES: Final = 1_000
"""Nodes of one workflow; a component counts each time it is used."""
MAX_EDGES: Final = 5_000
"""Edges in one file."""
MAX_ITERATIONS: Final = 1_000
"""Iterations of one loop."""
MAX_NODE_RUNS: Final = 10_000
"""Node runs of one run, including iterations."""
MAX_RETRIES: Final = 100
"""Retries of one gate."""
MAX_CONCURRENT: Final = 3
"""Nodes of a run that work at the same time, unless the workflow sets another number."""
MAX_ENVIRONMENT_VALUE: Final = 96 << 10
"""Bytes of one value passed to a shell. Linux allows 128 KiB for name and value together."""
MAX_ENVIRONMENT: Final = 1 << 20
"""Bytes of all values passed to one script. Linux allows 2 MiB for the whole environment."""
MAX_OUTPUT: Final = 1 << 20
"""Bytes that the sandbox process may answer."""
MAX_FILLED: Final = 1 << 20
"""Characters of a prompt or path once its templates are filled in. Sessions reject longer prompts anyway."""
MAX_CHARACTERS: Final = 4 << 20
"""Characters of all texts in one file, aliases counted each time they are used; and of all code in function files."""
MAX_PORTS: Final = 50_000
"""Inputs and outputs of one workflow; those of a component count each time it is used."""
MAX_WIRES: Final = 50_000
"""Connections of one workflow. An edge or template counts in every loop it crosses, a component at each use."""
MAX_STEPS: Final = 2_000_000
"""Search steps along connections while gates, and templates that name each other, are resolved."""
MAX_PROBLEMS: Final = 500
"""Errors listed for one file, and as many warnings."""
MAX_DRAWING: Final = 8 << 20
"""Characters of a drawing in the editor."""
MAX_RUN_DRAWING: Final = 2 << 20
"""Characters of the drawing of a run. The web process draws it again each second while the run is active."""
MAX_NODE_VALUES: Final = 8 << 20
"""Characters of the inputs of one node run, and of its outputs. Values that grow with each iteration reach it first."""
MAX_RUN_VALUES: Final = 128 << 20
"""Characters of the inputs and outputs of all node runs of one run, which the supervisor holds in memory."""
LOADING_CPU_SECONDS: Final = 10
"""Processor time for loading one workflow with all its components."""
LOADING_SECONDS: Final = 30.0
"""Elapsed time for the same: more than the processor time, so that a busy machine refuses no workflow."""
LOADING_MEMORY: Final = 1 << 30
"""Bytes of address space for the same."""


Kind = Literal["ports", "wires", "steps", "characters"]
_LABELS: Final[dict[Kind, str]] = {
    "ports": "the workflow has more than {most} inputs and outputs",
    "wires": "the workflow has more than {most} connections, including templates and crossings of loops",
    "steps": "resolving its gates, and templates that name each other, takes more than {most} steps",
    "characters": "the files of its functions have more than {most} characters",
}


class BudgetExceeded(Exception):
    """The workflow is too large to be loaded; users see the message."""


class Budget:
    """Counts what loading one workflow uses, with all its components."""

    def __init__(self) -> None:
        self._most: dict[Kind, int] = {
            "ports": MAX_PORTS,
            "wires": MAX_WIRES,
            "steps": MAX_STEPS,
            "characters": MAX_CHARACTERS,
        }
        self.spent: dict[Kind, int] = dict.fromkeys(self._most, 0)

    def spend(self, kind: Kind, amount: int = 1) -> None:
        """Count ``amount`` more of a kind. Raises BudgetExceeded once the workflow has used more than its limit."""
        self.spent[kind] += amount
        if self.spent[kind] > self._most[kind]:
            raise BudgetExceeded(_LABELS[kind].format(most=self._most[kind]))
