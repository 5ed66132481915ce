"""Where the HEAD of a lost worktree belongs, decided from what the repository still has.

The branch that a session was given is only the first one it had: an agent may rename it, switch to another one, detach
its HEAD or start an orphan branch. The newest snapshot names the branch and the commit that the agent had; branches are
followed, never moved. A branch that belongs to someone else (the base, another session's) is not checked out again
after it has moved on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from executors_app.machine.git import git_directory, recovery_snapshots
from executors_app.machine.git.git_directory import BRANCH_PREFIX, Head
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot

SESSION_BRANCH_PREFIX: Final = "refs/heads/kandev/"
_MAX_BRANCHES: Final = 500
"""Branches whose reflog is searched for the new name of a renamed branch."""
_REFLOG_BYTES: Final = 64 << 10


class RepositoryLookup(Protocol):
    """The queries on a repository that decide about the state of a worktree; they raise RepositoryUnusable."""

    @property
    def common(self) -> Path:
        """The directory that its worktrees share."""
        ...

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a full ref or an id names; None if it names none."""
        ...

    def text(self, *arguments: str) -> str:
        """Return the output of git, without the last line end."""
        ...


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What to check out in a new worktree, and which snapshot to restore on top."""

    ref: str
    """The branch, by its full name; empty for a detached HEAD."""
    commit: str
    """Its commit; empty for a branch without commits."""
    snapshot: RecoverySnapshot | None = None
    """The session's newest snapshot; its uncommitted work is restored only on its own commit."""
    creates_branch: bool = False
    """Whether the branch is missing and has to be created at ``commit``."""
    note: str = ""
    """What differs from before, as sentences for people; empty if nothing does."""


def plan_rebuild(
    repository: RepositoryLookup, branch: str, session_id: str, base: str = "", *, owns_repository: bool
) -> RebuildPlan | None:
    """Return where the HEAD of a session belongs; None if neither its branch nor a snapshot is known.

    ``branch`` is the session's own (``kandev/...``). ``owns_repository``: nobody else uses the repository, so a missing
    branch may be created again under its own name. Changes nothing; raises RepositoryUnusable.
    """
    plan = _plan_head(repository, branch, session_id, base, owns_repository=owns_repository)
    if plan is not None and (kept := _describe_kept(repository, session_id)):
        plan = replace(plan, note=f"{plan.note} {kept}".strip())
    if plan is None or plan.snapshot is None or not plan.snapshot.operation or plan.snapshot.head != plan.commit:
        return plan
    lost = f"git {plan.snapshot.operation} was in progress, of which only the files are left, so it has to begin again."
    return replace(plan, note=f"{plan.note} {lost}".strip())


def _describe_kept(repository: RepositoryLookup, session_id: str) -> str:
    """Return where commits are that are not on the branch; empty if there are none."""
    prefix = f"{recovery_snapshots.KEPT_PREFIX}{session_id}/"
    count = len(repository.text("for-each-ref", "--format=%(refname)", prefix).splitlines())
    if not count:
        return ""
    if count == 1:
        return f"One commit that is not on the branch is kept under {prefix}."
    return f"{count} commits that are not on the branch are kept under {prefix}."


def _plan_head(
    repository: RepositoryLookup, branch: str, session_id: str, base: str, *, owns_repository: bool
) -> RebuildPlan | None:
    own = f"{BRANCH_PREFIX}{branch}"
    found = recovery_snapshots.find_session_recovery(repository.text, session_id)
    if found is None or (found.ref is None and repository.commit_of(own)):
        return _plan_without_head(repository, own, found)
    ref = found.ref
    if ref is None:
        ref = own
    if not ref:
        return RebuildPlan("", found.head, found, note="HEAD was detached.")
    tip = repository.commit_of(ref)
    if tip == found.head or (tip is None and not found.head):
        return RebuildPlan(ref, found.head, found)
    if tip is None:
        return _plan_for_missing_branch(repository, found, ref, own, owns_repository=owns_repository)
    if ref != own and is_shared_branch(ref, base) and found.head:
        name = ref.removeprefix(BRANCH_PREFIX)
        note = f"The branch {name} has moved since, so HEAD is detached at {found.head[:12]}."
        return RebuildPlan("", found.head, found, note=note)
    return RebuildPlan(ref, tip, found)


def is_shared_branch(ref: str, base: str) -> bool:
    """Whether a branch is the session's base, or is named like a session's own."""
    return ref == f"{BRANCH_PREFIX}{base}" or ref.startswith(SESSION_BRANCH_PREFIX)


def _plan_without_head(repository: RepositoryLookup, own: str, found: RecoverySnapshot | None) -> RebuildPlan | None:
    """Plan for a session whose HEAD was never recorded: its own branch, or what that branch was renamed to."""
    if tip := repository.commit_of(own):
        return RebuildPlan(own, tip, found)
    renamed = _renamed_to(repository, own)
    if renamed and (tip := repository.commit_of(renamed)):
        return RebuildPlan(renamed, tip, found)
    return None


def _plan_for_missing_branch(
    repository: RepositoryLookup, found: RecoverySnapshot, ref: str, own: str, *, owns_repository: bool
) -> RebuildPlan:
    """Plan for a branch that is not there under its name: deleted, renamed, or never sent to this repository."""
    name, short = ref.removeprefix(BRANCH_PREFIX), found.head[:12]
    renamed = _renamed_to(repository, ref)
    if renamed and (tip := repository.commit_of(renamed)):
        return RebuildPlan(renamed, tip, found)
    if owns_repository and (ref == own or not ref.startswith(SESSION_BRANCH_PREFIX)):
        return RebuildPlan(ref, found.head, found, creates_branch=True)
    missing = f"There is no branch {name} any more; it may have been deleted or renamed. The last snapshot was taken at"
    if ref == own or repository.commit_of(own) is None:
        note = f"{missing} {short}, where {own.removeprefix(BRANCH_PREFIX)} now starts."
        return RebuildPlan(own, found.head, found, creates_branch=True, note=note)
    return RebuildPlan("", found.head, found, note=f"{missing} {short}, where HEAD is now detached.")


def _renamed_to(repository: RepositoryLookup, ref: str) -> str:
    """Return the branch that ``git branch -m`` made of ``ref``; empty if none is known.

    git moves the reflog with the branch, and adds the renaming to it.
    """
    listed = repository.text("for-each-ref", f"--count={_MAX_BRANCHES}", "--sort=-committerdate", BRANCH_PREFIX)
    names = [line.split("\t", 1)[1] for line in listed.splitlines() if "\t" in line]
    for name in names:
        wanted = f"renamed {ref} to {name}"
        reflog = git_directory.read_file_end(repository.common / "logs" / name, _REFLOG_BYTES) or b""
        if any(line.endswith(os.fsencode(wanted)) for line in reflog.splitlines()):
            return name
    return ""


def is_restorable_head(repository: RepositoryLookup, head: Head, own: str, found: RecoverySnapshot | None) -> bool:
    """Whether the HEAD of a record that outlived its worktree still says where the work is.

    A branch without commits is an orphan branch, or one that was deleted meanwhile: then the snapshot knows more.
    """
    if head.commit:
        return repository.commit_of(head.commit) is not None
    if not head.ref:
        return False
    if repository.commit_of(head.ref):
        return True
    if head.ref == own:
        return False
    return found is None or found.ref != head.ref or not found.head
