"""Merge a branch of a team's repository into another one, without a work tree and without the repository's settings.

git runs in a temporary repository of ours that borrows the team's objects. It has no hooks, filters, merge drivers,
attributes and settings, so nothing that the team or an agent has written runs or changes the result. Only a merge
without conflicts gets back: as a pack, and as one move of the target from the commit that was confirmed.

The same request makes the same commits, whoever repeats it: identity, date and message are part of it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from executors_app.repositories import bare, transfer
from executors_app.repositories.git import Bounds, Git, GitFailed
from executors_app.repositories.git_errors import Cause
from executors_app.repositories.layout import checked_out_branches
from executors_app.repositories.slots import Pool
from executors_app.repositories.team import WORKSPACE_BRANCH_PREFIX, TeamRepository

MERGE: Final = Bounds(memory=2 << 30, cpu=60, seconds=180.0, output=4 << 20, file=1 << 30, pool=Pool.HEAVY)
"""For a merge that is carried out."""
PREVIEW: Final = Bounds(memory=1 << 30, cpu=10, seconds=20.0, output=4 << 20, file=256 << 20, pool=Pool.VIEW)
"""For a merge that is only tried, to say what it would do."""
MERGE_SECONDS: Final = 600.0
PREVIEW_SECONDS: Final = 20.0
"""For all commits of a rebase together, checked before each."""
MAX_REBASED: Final = 200
"""Commits of a branch that is rebased."""
MAX_SUBJECTS: Final = 100
"""Commits whose subjects are read."""
TOO_LARGE: Final = "merge_too_large"
_TOO_LARGE_SENTENCE: Final = "This takes too long to be tried here. Squash it instead, or do it by hand."
_SUBJECT_LENGTH: Final = 200
_BRANCHES: Final = "refs/heads/"
_CLEAN: Final = "1"
_CARRIED_HEADERS: Final = (b"author ", b"encoding ")


class MergeRefused(Exception):
    """A branch cannot be merged as it was confirmed. Nothing was changed."""

    def __init__(self, code: str, message: str, conflicts: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.conflicts = tuple(conflicts)


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """What is merged: ``branch_commit`` of ``branch_ref`` into ``target_ref``, which is at ``expected_commit``."""

    strategy: str
    """``merge``, ``squash`` or ``rebase``."""
    branch_ref: str
    branch_commit: str
    target_ref: str
    expected_commit: str
    message: str
    name: str
    email: str
    at: datetime
    """The date of all commits that it makes."""

    def signature(self) -> bytes:
        """Return who makes the commits, and when, as git writes it."""
        name, email = (_plain(text) for text in (self.name, self.email))
        return f"{name or 'Kandev'} <{email}> {int(self.at.timestamp())} +0000".encode(errors="replace")


def _plain(text: str) -> str:
    """Return a name or an address without what would end it in a commit."""
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip(" .,:;\"'\\")


def find_target(team: TeamRepository, base: str, default: str = "") -> str:
    """Return the ref of the branch that a task names as its base; empty if it is no branch.

    Without a name, it is the branch of HEAD, or ``default`` if HEAD is on none.
    """
    if not base:
        head = team.head()
        if head.startswith(_BRANCHES) or not default:
            return head if head.startswith(_BRANCHES) else ""
        base = default
    name = base if base.startswith("refs/") else f"{_BRANCHES}{base}"
    if name.startswith(_BRANCHES) and not name.startswith(WORKSPACE_BRANCH_PREFIX) and name in team.refs(name):
        return name
    return ""


def where_checked_out(team: TeamRepository, ref: str) -> str:
    """Return where a branch is checked out: ``main`` for the repository itself, ``worktree``, or empty for nowhere."""
    if not team.is_bare and ref == team.head():
        return "main"
    if ref in checked_out_branches(team.directory, with_main=not team.is_bare):
        return "worktree"
    return ""


def require_unchanged(team: TeamRepository, request: MergeRequest) -> None:
    """Raise MergeRefused unless branch and target are where they were confirmed, and the target may be moved."""
    refs = team.refs(request.target_ref, request.branch_ref)
    target, branch = refs.get(request.target_ref), refs.get(request.branch_ref)
    if not request.target_ref.startswith(_BRANCHES) or request.target_ref.startswith(WORKSPACE_BRANCH_PREFIX):
        raise MergeRefused("merge_target_missing", "The target is no branch that can be merged into.")
    if branch is None:
        raise MergeRefused("merge_branch_missing", "The session's branch is not in the repository any more.")
    if branch != request.branch_commit:
        raise MergeRefused(
            "merge_branch_moved",
            f"The branch has moved from the reviewed commit {request.branch_commit[:12]} to {branch[:12]}. "
            "Review it again.",
        )
    if target is None:
        raise MergeRefused("merge_target_missing", f"{_short(request.target_ref)} does not exist any more.")
    if target != request.expected_commit:
        raise MergeRefused(
            "merge_target_moved",
            f"{_short(request.target_ref)} has moved from {request.expected_commit[:12]} to {target[:12]}. "
            "Confirm the merge again.",
        )
    if where_checked_out(team, request.target_ref):
        raise MergeRefused(
            "merge_target_checked_out",
            f"{_short(request.target_ref)} is checked out in the repository, so Kandev does not move it. "
            "Merge it there by hand.",
        )


def _short(ref: str) -> str:
    return ref.removeprefix(_BRANCHES)


def is_merged(team: TeamRepository, request: MergeRequest, result: str) -> bool:
    """Look whether the target has the result; raises MergeRefused if it is neither there nor where it was."""
    target = team.refs(request.target_ref).get(request.target_ref)
    if target is None or target == request.expected_commit:
        return False
    if target == result:
        return True
    # Somebody may have added commits since. The result itself is only in a history that it was moved into.
    known = bare.resolve_commit(team.git, result)
    return known is not None and bare.is_ancestor(team.git, result, target)


def prepare_merge(team: TeamRepository, request: MergeRequest) -> str:
    """Return the commit to which the target is to be moved; changes nothing. Raises MergeRefused, GitFailed."""
    require_unchanged(team, request)
    with _scratch(team, MERGE, MERGE_SECONDS) as scratch:
        return scratch.result(request)


def apply_merge(team: TeamRepository, request: MergeRequest, result: str, key: str) -> None:
    """Move the target from its expected commit to ``result``, with what that needs. May be repeated.

    ``key`` names the request, and nothing else that adds objects to the repository. Raises MergeRefused, GitFailed.
    """
    require_unchanged(team, request)
    with _scratch(team, MERGE, MERGE_SECONDS) as scratch:
        if scratch.result(request) != result:
            raise GitFailed("The merge had another result when it was repeated.", cause=Cause.UNKNOWN)
        known = (request.expected_commit, request.branch_commit)
        pack = transfer.make_pack(
            scratch.git, scratch.git.directory, [result], known, object_format=team.object_format, hold=()
        )
        if pack is not None:
            team.add_pack(pack, key)
    try:
        team.update_refs({request.target_ref: (request.expected_commit, result)})
    except GitFailed:
        # Another process may have moved it to the same result at the same moment.
        if not is_merged(team, request, result):
            require_unchanged(team, request)
            raise


@dataclass(frozen=True, slots=True)
class MergePreview:
    """What merging a branch would do now."""

    ahead: int
    """Commits of the branch that the target does not have."""
    behind: int
    subjects: tuple[str, ...]
    """Of the branch's commits, the oldest first, at most ``MAX_SUBJECTS``."""
    problem: str
    """The code of the refusal; empty if it can be merged."""
    message: str
    conflicts: tuple[str, ...]


def preview_merge(team: TeamRepository, request: MergeRequest) -> MergePreview:
    """Try a merge, and return what it would do; changes nothing. Raises GitFailed."""
    with _scratch(team, PREVIEW, PREVIEW_SECONDS) as scratch:
        ahead, behind = scratch.distance(request.branch_commit, request.expected_commit)
        subjects = scratch.subjects(request.expected_commit, request.branch_commit)
        try:
            scratch.result(request)
        except MergeRefused as refusal:
            return MergePreview(ahead, behind, subjects, refusal.code, refusal.message, refusal.conflicts)
        except GitFailed as error:
            if error.cause is not Cause.TIME:
                raise
            return MergePreview(ahead, behind, subjects, TOO_LARGE, _TOO_LARGE_SENTENCE, ())
    return MergePreview(ahead, behind, subjects, "", "", ())


def count_unmerged(team: TeamRepository, branch_commit: str, target_commit: str) -> int:
    """Return how many commits of a branch the target does not have. Raises GitFailed."""
    return int(team.git.text("rev-list", "--count", branch_commit, f"^{target_commit}", bounds=PREVIEW))


@contextmanager
def _scratch(team: TeamRepository, bounds: Bounds, seconds: float) -> Iterator[_Scratch]:
    """Make a repository that borrows the team's objects, and remove it again; ``seconds`` limit a rebase in it."""
    with tempfile.TemporaryDirectory(prefix="kandev-merge-") as folder:
        path = Path(folder) / "repository.git"
        bare.make_bare_repository(path, team.object_format, mode=0o700)
        (path / "objects" / "info" / "alternates").write_bytes(os.fsencode(team.git.directory / "objects") + b"\n")
        git = Git(path, account=str(team.common), descriptors=team.git.descriptors)
        yield _Scratch(git, bounds, time.monotonic() + seconds)


@dataclass(frozen=True, slots=True)
class _Scratch:
    """A temporary repository in which a merge is made."""

    git: Git
    bounds: Bounds
    until: float
    """When a rebase is given up (monotonic clock)."""

    def result(self, request: MergeRequest) -> str:
        """Make the commits of a merge, and return the last one. Raises MergeRefused, GitFailed."""
        ours, theirs = request.expected_commit, request.branch_commit
        if bare.is_ancestor(self.git, theirs, ours):
            raise MergeRefused("merge_nothing", f"{_short(request.target_ref)} has all commits of the branch already.")
        if not self._are_related(ours, theirs):
            raise MergeRefused(
                "merge_unrelated", f"The branch and {_short(request.target_ref)} have no commit in common."
            )
        if request.strategy == "rebase":
            return self._rebase(request)
        tree = self._merge_trees(ours, theirs)
        if request.strategy == "merge":
            return self._commit(request, tree, (ours, theirs))
        if tree == bare.resolve_tree(self.git, ours):
            raise MergeRefused("merge_nothing", f"{_short(request.target_ref)} has all changes of the branch already.")
        return self._commit(request, tree, (ours,))

    def distance(self, branch: str, target: str) -> tuple[int, int]:
        """Return how many commits only the branch has, and how many only the target."""
        counted = self._text("rev-list", "--count", "--left-right", f"{branch}...{target}")
        ahead, behind = counted.split()
        return int(ahead), int(behind)

    def subjects(self, target: str, branch: str) -> tuple[str, ...]:
        """Return the subjects of the branch's newest commits, the oldest first."""
        words = ("log", "-z", "--no-color", "--format=%s", f"--max-count={MAX_SUBJECTS}", f"{target}..{branch}")
        found = self.git.run(*words, bounds=self.bounds).decode("utf-8", "replace")
        lines = [line[:_SUBJECT_LENGTH] for line in found.split("\0") if line]
        return tuple(reversed(lines))

    def _are_related(self, ours: str, theirs: str) -> bool:
        try:
            self.git.run("merge-base", ours, theirs, bounds=self.bounds)
        except GitFailed as error:
            if error.details.get("exit_code") != 1:
                raise
            return False
        return True

    def _merge_trees(self, ours: str, theirs: str) -> str:
        """Return the tree of a merge. Raises MergeRefused with the files in conflict, GitFailed."""
        # Of several merges on stdin, git reports conflicts in its output; of one in its arguments, by its exit code.
        words = ("merge-tree", "--write-tree", "--name-only", "-z", "--no-messages", "--stdin")
        output = self.git.run(*words, stdin=f"{ours} {theirs}\n".encode(), bounds=self.bounds)
        status, tree, *names = output.decode("utf-8", "backslashreplace").split("\0")
        if status == _CLEAN:
            return tree
        conflicts = [name for name in names if name]
        raise MergeRefused("merge_conflict", _conflict_sentence(len(conflicts)), conflicts)

    def _rebase(self, request: MergeRequest) -> str:
        """Return the last of the branch's commits, repeated on the target. Raises MergeRefused, GitFailed."""
        onto, branch = request.expected_commit, request.branch_commit
        if bare.is_ancestor(self.git, onto, branch):
            return branch
        words = ("rev-list", "--reverse", "--topo-order", "--parents", f"--max-count={MAX_REBASED + 1}")
        lines = self._text(*words, f"{onto}..{branch}").splitlines()
        if len(lines) > MAX_REBASED:
            raise MergeRefused(
                "merge_too_long", f"The branch has more than {MAX_REBASED} commits. Merge or squash it instead."
            )
        for line in lines:
            if time.monotonic() > self.until:
                raise MergeRefused(TOO_LARGE, _TOO_LARGE_SENTENCE)
            commit, *parents = line.split()
            if len(parents) != 1:
                raise MergeRefused(
                    "merge_has_merges", "The branch contains merges, which a rebase would lose. Merge or squash it."
                )
            onto = self._pick(request, commit, parents[0], onto)
        if onto == request.expected_commit:
            raise MergeRefused("merge_nothing", f"{_short(request.target_ref)} has all changes of the branch already.")
        return onto

    def _pick(self, request: MergeRequest, commit: str, parent: str, onto: str) -> str:
        """Repeat one commit on another one, and return the new commit; ``onto`` if it would change nothing there."""
        tree = bare.resolve_tree(self.git, onto)
        # With this stand-in for ``onto``, the parent of the commit is what both sides have in common.
        stand_in = self._commit(request, tree, (parent,))
        picked = self._merge_trees(stand_in, commit)
        if picked == tree:
            return onto
        headers, _, message = self.git.run("cat-file", "commit", commit, bounds=self.bounds).partition(b"\n\n")
        carried = [line for line in headers.split(b"\n") if line.startswith(_CARRIED_HEADERS)]
        author = next((line for line in carried if line.startswith(b"author ")), b"author " + request.signature())
        others = [line for line in carried if line.startswith(b"encoding ")]
        return self._write([*_links(picked, (onto,)), author, b"committer " + request.signature(), *others], message)

    def _commit(self, request: MergeRequest, tree: str, parents: Sequence[str]) -> str:
        message = request.message.replace("\0", "").strip() + "\n"
        people = [word + request.signature() for word in (b"author ", b"committer ")]
        return self._write([*_links(tree, parents), *people], message.encode("utf-8", "replace"))

    def _write(self, headers: Sequence[bytes], message: bytes) -> str:
        content = b"\n".join(headers) + b"\n\n" + message
        return self.git.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=content).decode().strip()

    def _text(self, *arguments: str) -> str:
        return self.git.text(*arguments, bounds=self.bounds)


def _links(tree: str, parents: Sequence[str]) -> list[bytes]:
    return [f"tree {tree}".encode(), *(f"parent {parent}".encode() for parent in parents)]


def _conflict_sentence(count: int) -> str:
    if count == 1:
        return "One file is in conflict."
    return f"{count} files are in conflict."
