"""The name of one session's sprite, and the paths in it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from executors_app.machine.git import workspace_root
from executors_app.runtimes.sprites import organisation
from executors_app.runtimes.sprites.config import SpritesConfig
from executors_app.runtimes.sprites.program import program_version
from executors_app.wire.executions import ExecutionFacts, LaunchSpec


class SpriteLayout:
    """The name of one session's sprite, and the paths in it."""

    def __init__(self, execution: LaunchSpec | ExecutionFacts, config: SpritesConfig):
        if isinstance(execution, LaunchSpec):
            self.execution_id = execution.execution_id
        else:
            self.execution_id = execution.id
        self.session_id = execution.session_id
        self.name = organisation.sprite_name(self.execution_id)
        self.root = organisation.sprite_root(self.execution_id)
        self.work = self.root / "work"
        """The directory of the session's repository and worktree."""
        worktree = workspace_root.sandbox_worktree_path(Path(self.work), self.session_id, execution.worktree_branch)
        self.worktree = worktree
        """The session's worktree; an empty branch follows from the id."""
        self.seed = self.root / "seed"
        """The file that the workspace is made from."""
        self.state = self.root / "state"
        """Agentctl's state directory."""
        self.token = self.root / "token"
        """The file with agentctl's bearer token."""
        self.python = config.python
        self.interpreter = config.python or str(self.root / "python" / "bin" / "python")
        """The Python that runs the program."""

    @property
    def code(self) -> PurePosixPath:
        """The directory of this version of the program."""
        return self.root / f"program-{program_version()}"

    def command(self, module: str, *arguments: str) -> list[str]:
        """Return the argv that runs a module of the program."""
        return ["env", f"PYTHONPATH={self.code}", self.interpreter, "-P", "-m", module, *arguments]
