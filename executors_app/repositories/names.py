"""The refs that a workspace has for its own: its branch, its last snapshot, and what was set aside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from executors_app.errors import RepositoryUnusable

_WORKSPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_BRANCH: Final = re.compile(r"kandev/[0-9a-f]{12}")
_KEPT: Final = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True)
class Names:
    """The refs of one workspace; RepositoryUnusable for ids and branches that could name anything else."""

    workspace_id: str
    branch_name: str

    def __post_init__(self) -> None:
        check_workspace(self.workspace_id)
        if not _BRANCH.fullmatch(self.branch_name):
            raise RepositoryUnusable(
                f"{self.branch_name!r} is not the branch of a workspace: those are kandev/ and twelve digits."
            )

    @property
    def branch(self) -> str:
        """The ref of the branch."""
        return f"refs/heads/{self.branch_name}"

    @property
    def recovery(self) -> str:
        """The ref of the last snapshot."""
        return f"refs/kandev/recovery/{self.workspace_id}"

    @property
    def kept(self) -> str:
        """The folder of what was set aside."""
        return f"refs/kandev/kept/{self.workspace_id}/"

    def kept_as(self, commit: str) -> str:
        """The ref under which a commit is set aside."""
        return f"{self.kept}{commit[:12]}"

    def owns(self, ref: str) -> bool:
        """Whether a ref is this workspace's."""
        return ref in (self.branch, self.recovery) or (
            ref.startswith(self.kept) and _KEPT.fullmatch(ref.removeprefix(self.kept)) is not None
        )


def check_workspace(workspace_id: str) -> str:
    """The id, if it is one; RepositoryUnusable."""
    if not _WORKSPACE.fullmatch(workspace_id):
        raise RepositoryUnusable(f"{workspace_id!r} is not the id of a workspace.")
    return workspace_id
