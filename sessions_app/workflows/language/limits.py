"""Size and cost limits of workflow files and runs, and the budget that one load may spend."""

from __future__ import annotations

from typing import Final, Literal

MAX_BYTES: Final = 1 << 20
"""Of one file."""
MAX_DEPTH: Final = 64
"""Of values within values in one file, and of components within components."""
MAX_VALUES: Final = 200_000
"""Of values in one file, aliases counted as often as they are used."""
MAX_NODES: Final = 1_000
"""Of one workflow, each component counted as often as it is used."""
MAX_EDGES: Final = 5_000
"""Of one file."""
MAX_ITERATIONS: Final = 1_000
"""Of one loop."""
MAX_NODE_RUNS: Final = 10_000
"""Of one run, iterations among them."""
MAX_RETRIES: Final = 100
"""Of one gate."""
MAX_CONCURRENT: Final = 3
"""Nodes of a run at work at the same time, unless the workflow says otherwise."""
MAX_ENVIRONMENT_VALUE: Final = 96 << 10
"""Bytes of one value given to a shell; systems end at 128 KiB for name and value."""
MAX_ENVIRONMENT: Final = 1 << 20
"""Bytes of all values given to one script; systems end at 2 MiB for the whole environment."""
MAX_OUTPUT: Final = 1 << 20
"""Bytes that a limited process may answer."""
MAX_FILLED: Final = 1 << 20
"""Characters of a prompt or path once its templates are filled in; a longer prompt is refused anyway."""
MAX_CHARACTERS: Final = 4 << 20
"""Of all texts in one file, aliases counted as often as they are used; of all code in files of functions."""
MAX_PORTS: Final = 50_000
"""Inputs and outputs of one workflow, those of a component counted as often as it is used."""
MAX_WIRES: Final = 50_000
"""Connections of one workflow: each edge and template in every loop that it crosses, components as often as used."""
MAX_STEPS: Final = 2_000_000
"""Steps along connections while gates and templates that name each other are resolved."""
MAX_PROBLEMS: Final = 500
"""Errors, and warnings, that are listed of one file."""
MAX_DRAWING: Final = 8 << 20
"""Characters of a drawing on a page."""
LOADING_CPU_SECONDS: Final = 10
"""Of a processor, for loading one workflow with all its components."""
LOADING_SECONDS: Final = 30.0
"""Of the clock, for the same; more than its processor time, so that a busy machine refuses nothing."""
LOADING_MEMORY: Final = 1 << 30
"""Bytes of address space, for the same."""


Kind = Literal["ports", "wires", "steps", "characters"]
_LABELS: Final[dict[Kind, str]] = {
    "ports": "the workflow has more than {most} inputs and outputs",
    "wires": "the workflow has more than {most} connections, templates and crossed loops included",
    "steps": "its gates, or templates that name each other, take more than {most} steps to resolve",
    "characters": "the files of its functions have more than {most} characters",
}


class BudgetExceeded(Exception):
    """The workflow is too large to be loaded; the message is for people."""


class Budget:
    """Counts what one workflow uses up, with all its components."""

    def __init__(self) -> None:
        self._most: dict[Kind, int] = {
            "ports": MAX_PORTS,
            "wires": MAX_WIRES,
            "steps": MAX_STEPS,
            "characters": MAX_CHARACTERS,
        }
        self.spent: dict[Kind, int] = dict.fromkeys(self._most, 0)

    def spend(self, kind: Kind, amount: int = 1) -> None:
        """Count ``amount`` more of a kind. Raises OverBudget once that is more than the workflow may use."""
        self.spent[kind] += amount
        if self.spent[kind] > self._most[kind]:
            raise BudgetExceeded(_LABELS[kind].format(most=self._most[kind]))
