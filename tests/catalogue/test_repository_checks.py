"""What is wrong with a repository, in all states that one can have on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessions_app.catalogue.services.repository_checks import PROBLEM_TEXTS, RepositoryProblem, check_repository
from sessions_app.models import Repository
from tests.executors.repositories import run_git

pytestmark = pytest.mark.django_db


def nothing(path: Path) -> None:
    """Leave the repository as it is."""


def detach(path: Path) -> None:
    run_git(path, "checkout", "--quiet", "--detach")


def delete(path: Path) -> None:
    shutil.rmtree(path)


def replace_by_a_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def begin_again(path: Path) -> None:
    replace_by_a_folder(path)
    run_git(path, "init", "--quiet")


def rename_branch(path: Path) -> None:
    run_git(path, "branch", "--move", "trunk")


def check_out_nothing(path: Path) -> None:
    run_git(path, "symbolic-ref", "HEAD", "refs/heads/new")


@pytest.mark.parametrize(
    ("change", "values", "branch", "problem"),
    [
        (nothing, {}, "main", None),
        (nothing, {"default_base": "main"}, "main", None),
        (nothing, {"default_base": "HEAD~0"}, "main", None),
        (nothing, {"default_base": "gone"}, "main", RepositoryProblem.BASE_MISSING),
        (detach, {}, "", None),
        (rename_branch, {}, "trunk", RepositoryProblem.BRANCH_MISSING),
        (rename_branch, {"default_branch": ""}, "trunk", None),
        (delete, {}, "", RepositoryProblem.MISSING),
        (replace_by_a_folder, {}, "", RepositoryProblem.UNUSABLE),
        (begin_again, {}, "main", RepositoryProblem.EMPTY),
        (check_out_nothing, {}, "new", RepositoryProblem.NO_CHECKOUT),
        (check_out_nothing, {"default_base": "main"}, "new", None),
    ],
)
def test_state_on_the_disk_is_recognised(
    on_disk: Repository,
    change: Callable[[Path], None],
    values: dict[str, Any],
    branch: str,
    problem: RepositoryProblem | None,
) -> None:
    change(Path(on_disk.path))
    for name, value in values.items():
        setattr(on_disk, name, value)
    found = check_repository(on_disk)
    assert (found.branch, found.problem) == (branch, problem)


def test_repository_outside_the_allowed_folders_is_not_read(on_disk: Repository, settings: Any) -> None:
    settings.KANDEV_REPOSITORY_ROOTS = ("/nowhere",)
    found = check_repository(on_disk)
    assert (found.branch, found.problem) == ("", RepositoryProblem.UNUSABLE)
    assert "KANDEV_REPOSITORY_ROOTS" in found.detail


def test_every_problem_has_a_next_step() -> None:
    assert set(PROBLEM_TEXTS) == set(RepositoryProblem)
