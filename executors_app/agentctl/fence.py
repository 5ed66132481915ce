"""The generation check: of several supervisors only the newest may command (design 4, rule 17)."""

from __future__ import annotations

from collections.abc import Callable

from executors_app.agentctl.memory import Memory
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused


class Fence:
    """Remembers the highest generation seen, over restarts."""

    def __init__(self, memory: Memory):
        self._memory = memory
        self.generation: int = memory.recall("generation") or 0
        self.on_raise: Callable[[int], None] = lambda generation: None
        """Called with each newer generation."""

    def admit(self, generation: int) -> None:
        """Let a command of this generation pass; Refused if a newer one was seen."""
        if generation < self.generation:
            raise Refused(
                Code.STALE_GENERATION, "a newer generation has taken over", seen=self.generation, given=generation
            )
        if generation > self.generation:
            self._memory.keep("generation", "", generation)
            self.generation = generation
            self.on_raise(generation)
