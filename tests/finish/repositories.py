"""A session whose branch can be merged: its repository has commits, and its base is not checked out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group, User

from sessions_app.finish.models import FinishIntent
from sessions_app.finish.services import request_merge
from sessions_app.models import Repository, TaskSession
from tests.executors.repositories import commit, make_repository, run_git
from tests.finish.intents import give_right
from tests.supervisor.rows import change, make_session, make_task, make_user

MAIN = "refs/heads/main"


@dataclass
class Mergeable:
    """A session and the repository of its task."""

    session: TaskSession
    path: Path

    @property
    def branch(self) -> str:
        """The session's branch."""
        return f"kandev/{self.session.id}"

    def at(self, revision: str = MAIN) -> str:
        """Return the commit of a revision."""
        return run_git(self.path, "rev-parse", revision)

    def subjects(self, revision: str = MAIN) -> list[str]:
        """Return the subjects of the commits that a revision reaches, the newest first."""
        return run_git(self.path, "log", "--format=%s", "--topo-order", revision).splitlines()

    def commit_to(self, branch: str, name: str, text: str) -> str:
        """Commit a file to a branch, which is checked out only meanwhile."""
        run_git(self.path, "checkout", "--quiet", branch, "--")
        made = commit(self.path, name, text)
        run_git(self.path, "checkout", "--quiet", "--detach")
        return made

    def request(self, by: User | None = None, **values: Any) -> FinishIntent:
        """Request the merge of what is there now."""
        given = {"strategy": "merge", "branch_commit": self.at(self.branch), "target_commit": self.at(), **values}
        return request_merge(self.session, by or make_user(), **given)


def mergeable(path: Path, *, right: bool = True) -> Mergeable:
    """Create the repository at ``path``, and a session with a branch of two commits; its base has one of its own."""
    make_repository(path)
    make_user()
    repository = Repository.objects.create(team=Group.objects.get(name="team"), path=str(path), name=path.name)
    session = make_session(task=make_task(repository=repository, base_branch="main"))
    made = Mergeable(change(session, worktree_branch=f"kandev/{session.id}"), path)
    run_git(path, "branch", made.branch)
    made.commit_to(made.branch, "one", "1\n")
    made.commit_to(made.branch, "two", "2\n")
    made.commit_to("main", "other", "other\n")
    if right:
        give_right(session)
    return made
