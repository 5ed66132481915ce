"""What a part of a branch has changed: one of its commits, one turn, or what is not committed.

A turn is what differs between two snapshots of the workspace. All calls block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.workspace import branch_review
from executors_app.agentctl.workspace.changes import checked_path
from executors_app.machine.git import branch_changes, recovery_snapshots
from executors_app.machine.git.branch_changes import EMPTY_TREES, ChangedFile, PartProblem
from executors_app.machine.git.tree_changes import TreeChanges
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.wire.protocol import validation_error

_LIST_LIMIT: Final = 8 << 20
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Part:
    """A commit, or two snapshots; neither: what is not committed."""

    commit: str = ""
    before: str = ""
    after: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Part:
        """Return the part that a request names; raises ApiError."""
        given = {name: query.get(name, "") for name in ("commit", "before", "after")}
        for name, value in given.items():
            if value and not _COMMIT_ID.fullmatch(value):
                raise validation_error(f"{name} must be a full commit id", field=name)
        part = cls(**given)
        if bool(part.before) != bool(part.after) or (part.commit and part.before):
            raise validation_error("name a commit, or before and after, or none of them", field="commit")
        return part

    @property
    def is_uncommitted(self) -> bool:
        """Whether this is what is not committed."""
        return not self.commit and not self.before


@dataclass(frozen=True, slots=True)
class PartOfBranch:
    """A part of the branch in one workspace; ``session_id`` is the session whose snapshots are taken of it."""

    git: WorkspaceGit
    session_id: str
    part: Part

    def list_changes(self, base: str) -> dict[str, Any]:
        """Return what ``branch_review.list_branch_changes`` returns, and why there is none: ``part_problem``.

        Nothing is compared with ``base``; the answer lists the branch's commits since it.
        """
        if self.part.is_uncommitted:
            return {**branch_review.list_uncommitted(self.git, base), "part_problem": ""}
        about = branch_review.describe_branch(self.git, base)
        trees, problem = self._trees()
        files: list[ChangedFile] = []
        truncated = False
        if trees:
            files, truncated = self._changes().list_files(*trees)
        return {**about, "part_problem": problem, **branch_changes.summarize(files, truncated=truncated)}

    def read_hunks(self, paths: Sequence[str], context: int) -> dict[str, Any]:
        """Return what ``branch_review.branch_hunks`` returns; raises ApiError."""
        if self.part.is_uncommitted:
            return branch_review.uncommitted_hunks(self.git, paths, context)
        for path in paths:
            checked_path(self.git.root, path)
        trees, _ = self._trees()
        if not trees:
            return {"base": None, "files": [branch_changes.hunks_answer(path, None) for path in paths]}
        places = {path: path for path in paths}
        return {"base": None, "files": self._changes().read_hunks(*trees, places, context)}

    def _changes(self) -> TreeChanges:
        def read_sizes(ids: Sequence[str]) -> dict[str, int]:
            wanted = "".join(f"{each}\n" for each in ids).encode()
            output = self.git.run("cat-file", branch_changes.SIZE_FORMAT, stdin=wanted)
            return branch_changes.parse_sizes(output.data)

        return TreeChanges(branch_review.reader_of(self.git), read_sizes, _LIST_LIMIT)

    def _trees(self) -> tuple[tuple[str, str] | None, str]:
        """Return what to compare, or None and the reason."""
        if self.part.commit:
            return self._trees_of_commit()
        if all(self._is_snapshot(commit) for commit in (self.part.before, self.part.after)):
            return (self.part.before, self.part.after), ""
        return None, PartProblem.NOT_STORED

    def _trees_of_commit(self) -> tuple[tuple[str, str] | None, str]:
        # Only of this branch: a repository may have commits of other sessions.
        commit = self.part.commit
        if self.git.run("merge-base", "--is-ancestor", commit, "HEAD", good=(0, 1, 128)).exit_code:
            return None, PartProblem.NOT_OF_BRANCH
        parents = self.git.text("rev-parse", f"{commit}^@").split()
        return (parents[0] if parents else EMPTY_TREES[len(commit)], commit), ""

    def _is_snapshot(self, commit: str) -> bool:
        """Whether a commit is a snapshot of this session that the repository still has."""
        try:
            found = recovery_snapshots.find_recovery(self.git.text, commit)
        except GitError:
            return False
        return found is not None and found.session_id == self.session_id
