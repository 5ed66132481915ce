"""The refs of one workspace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from executors_app.wire.errors import RepositoryUnusable

_WORKSPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_BRANCH: Final = re.compile(r"kandev/[0-9a-f]{12}")
_KEPT: Final = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True)
class WorkspaceRefs:
    """The refs of one workspace; raises RepositoryUnusable for ids or branches that could name other refs."""

    workspace_id: str
    branch_name: str

    def __post_init__(self) -> None:
        check_workspace_id(self.workspace_id)
        if not _BRANCH.fullmatch(self.branch_name):
            raise RepositoryUnusable(
                f"{self.branch_name!r} is not a workspace's branch: expected kandev/ and twelve hexadecimal digits."
            )

    @property
    def branch(self) -> str:
        """The ref of the branch."""
        return f"refs/heads/{self.branch_name}"

    @property
    def recovery(self) -> str:
        """The ref of the newest snapshot."""
        return f"refs/kandev/recovery/{self.workspace_id}"

    @property
    def kept(self) -> str:
        """The prefix of refs that were set aside."""
        return f"refs/kandev/kept/{self.workspace_id}/"

    def kept_as(self, commit: str) -> str:
        """Return the ref under which a commit is set aside."""
        return f"{self.kept}{commit[:12]}"

    def owns(self, ref: str) -> bool:
        """Whether a ref belongs to this workspace."""
        return ref in (self.branch, self.recovery) or (
            ref.startswith(self.kept) and _KEPT.fullmatch(ref.removeprefix(self.kept)) is not None
        )


def check_workspace_id(workspace_id: str) -> str:
    """Return the id if it is valid; raises RepositoryUnusable."""
    if not _WORKSPACE.fullmatch(workspace_id):
        raise RepositoryUnusable(f"{workspace_id!r} is not a workspace id.")
    return workspace_id
