"""What is wrong with a team's repository on the server's disk, and what to do about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from django.core.cache import cache

from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.catalogue.services.repositories import usable_repository
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import Repository

CHECK_LIFETIME: Final = 30
"""Seconds for which lists show a check again, so that opening a page often costs little."""
MAX_CHECKED: Final = 50
"""Repositories that one list checks."""


class RepositoryProblem(StrEnum):
    """Why tasks cannot start in a repository, or not where its settings say."""

    MISSING = "repository_missing"
    UNUSABLE = "repository_unusable"
    EMPTY = "repository_empty"
    NO_CHECKOUT = "repository_no_checkout"
    BASE_MISSING = "default_base_missing"
    BRANCH_MISSING = "default_branch_missing"


@dataclass(frozen=True, slots=True)
class ProblemText:
    """What a problem is called, and the next step."""

    label: str
    next_step: str


PROBLEM_TEXTS: Final[Mapping[RepositoryProblem, ProblemText]] = {
    RepositoryProblem.MISSING: ProblemText(
        "Not found on the disk", "Ask who runs the server to put it back there, or remove it from the team."
    ),
    RepositoryProblem.UNUSABLE: ProblemText("Cannot be used", "Ask who runs the server to repair it."),
    RepositoryProblem.EMPTY: ProblemText(
        "Has no commits", "Commit something in it, so that a session can start there."
    ),
    RepositoryProblem.NO_CHECKOUT: ProblemText(
        "Nothing to start from", "Check out a branch that has commits, or choose what new tasks start from."
    ),
    RepositoryProblem.BASE_MISSING: ProblemText(
        "New tasks would start from what does not exist", "Choose another branch for new tasks."
    ),
    RepositoryProblem.BRANCH_MISSING: ProblemText(
        "The default branch does not exist", "Choose another default branch. Tasks are not affected."
    ),
}


@dataclass(frozen=True, slots=True)
class RepositoryCheck:
    """What was found at the path of a repository."""

    branch: str = ""
    """The branch that is checked out; empty: none is, or it is unknown."""
    problem: RepositoryProblem | None = None
    detail: str = ""
    """What git or the system said."""

    @property
    def label(self) -> str:
        """What the problem is called; empty if there is none."""
        return PROBLEM_TEXTS[self.problem].label if self.problem else ""

    @property
    def next_step(self) -> str:
        """What to do about the problem; empty if there is none."""
        return PROBLEM_TEXTS[self.problem].next_step if self.problem else ""

    @property
    def is_blocking(self) -> bool:
        """Whether new tasks cannot start as its settings say."""
        return self.problem not in (None, RepositoryProblem.BRANCH_MISSING)


def check_repository(row: Repository) -> RepositoryCheck:
    """Look at a repository now. Not for transactions: it runs git."""
    found = _check(row)
    cache.set(_cache_key(row), (found.branch, found.problem and found.problem.value, found.detail), CHECK_LIFETIME)
    return found


def recent_check(row: Repository) -> RepositoryCheck:
    """Return what was found at most ``CHECK_LIFETIME`` seconds ago, or look now."""
    stored = cache.get(_cache_key(row))
    if stored is None:
        return check_repository(row)
    branch, problem, detail = stored
    return RepositoryCheck(branch, RepositoryProblem(problem) if problem else None, detail)


def require_branch(row: Repository, name: str) -> None:
    """Raise Invalid (``default_branch``) unless the repository has a branch of this name. Not for transactions."""
    ref = f"refs/heads/{name}"
    try:
        known = TeamRepository.open(usable_repository(row.path)).refs(ref)
    except (RepositoryUnusable, Invalid) as error:
        raise Invalid(f"The branch cannot be looked up: {error.message}", field="default_branch") from error
    if ref not in known:
        raise Invalid("The repository has no such branch.", field="default_branch")


def require_base(row: Repository, name: str) -> None:
    """Raise Invalid (``default_base``) unless new branches can start from what is called so. Not for transactions."""
    try:
        start = TeamRepository.open(usable_repository(row.path)).find_start(name)
    except (RepositoryUnusable, Invalid) as error:
        raise Invalid(f"It cannot be looked up: {error.message}", field="default_base") from error
    if start is None:
        raise Invalid("The repository has no branch, tag or commit of this name.", field="default_base")


def _cache_key(row: Repository) -> str:
    named = "\0".join((row.path, row.default_branch, row.default_base))
    return f"repository-check:{hashlib.sha256(named.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _check(row: Repository) -> RepositoryCheck:
    path = Path(row.path)
    try:
        if not path.exists():
            return RepositoryCheck(problem=RepositoryProblem.MISSING)
        team = TeamRepository.open(usable_repository(row.path))
        head, refs = team.head(), team.refs()
        branch = head.removeprefix("refs/heads/") if head.startswith("refs/heads/") else ""
        problem = _problem_of(row, head, refs)
        if problem is RepositoryProblem.BASE_MISSING and team.find_start(row.default_base):
            problem = _branch_problem(row, refs)  # a commit, or an expression such as main~1
    except (RepositoryUnusable, Invalid) as error:
        return RepositoryCheck(problem=RepositoryProblem.UNUSABLE, detail=error.message)
    except (OSError, ValueError) as error:
        return RepositoryCheck(problem=RepositoryProblem.UNUSABLE, detail=str(error))
    return RepositoryCheck(branch, problem)


def _problem_of(row: Repository, head: str, refs: Mapping[str, str]) -> RepositoryProblem | None:
    """Return what is wrong with the branches of a repository that can be read."""
    if not refs and not _is_commit(head):
        return RepositoryProblem.EMPTY
    if row.default_base:
        names = (f"refs/heads/{row.default_base}", f"refs/remotes/origin/{row.default_base}")
        if not any(name in refs for name in names):
            return RepositoryProblem.BASE_MISSING
    elif head not in refs and not _is_commit(head):
        return RepositoryProblem.NO_CHECKOUT
    return _branch_problem(row, refs)


def _branch_problem(row: Repository, refs: Mapping[str, str]) -> RepositoryProblem | None:
    if row.default_branch and f"refs/heads/{row.default_branch}" not in refs:
        return RepositoryProblem.BRANCH_MISSING
    return None


def _is_commit(head: str) -> bool:
    """Return whether HEAD names a commit and no branch."""
    return bool(head) and not head.startswith("refs/")
