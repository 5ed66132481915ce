"""What loading one workflow may use up, so that its cost grows with the length of the text and no faster."""

from __future__ import annotations

from typing import Final, Literal

from sessions_app.workflows import limits

Kind = Literal["ports", "wires", "steps", "characters"]
_WORDS: Final[dict[Kind, str]] = {
    "ports": "the workflow has more than {most} inputs and outputs",
    "wires": "the workflow has more than {most} connections, templates and crossed loops included",
    "steps": "its gates, or templates that name each other, take more than {most} steps to resolve",
    "characters": "the files of its functions have more than {most} characters",
}


class OverBudget(Exception):
    """The workflow is too large to be loaded; the message is for people."""


class Budget:
    """Counts what one workflow uses up, with all its components."""

    def __init__(self) -> None:
        self._most: dict[Kind, int] = {
            "ports": limits.MAX_PORTS,
            "wires": limits.MAX_WIRES,
            "steps": limits.MAX_STEPS,
            "characters": limits.MAX_CHARACTERS,
        }
        self.spent: dict[Kind, int] = dict.fromkeys(self._most, 0)

    def spend(self, kind: Kind, amount: int = 1) -> None:
        """Count ``amount`` more of a kind. Raises OverBudget once that is more than the workflow may use."""
        self.spent[kind] += amount
        if self.spent[kind] > self._most[kind]:
            raise OverBudget(_WORDS[kind].format(most=self._most[kind]))
