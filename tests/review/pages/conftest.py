"""Users and browsers, and a session on a branch with commits and uncommitted changes, served by a real agentctl."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app.models import ExecutorRunning
from sessions_app.models import Task, TaskSession
from tests.agentctl.running import TOKEN
from tests.executors.repositories import commit, run_git
from tests.pages.fixtures import ada, bob, browser, quick_password_hashes, staff, visit, world
from tests.pages.world import World
from tests.workspace.served import REAL, Place, make_repository_in

__all__ = ["ada", "bob", "browser", "quick_password_hashes", "staff", "visit", "world"]
LINES = "".join(f"line {number}\n" for number in range(100))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield a workspace, on a branch with commits and uncommitted changes, that a real agentctl serves."""
    made = Place(tmp_path)
    make_repository_in(made.workspace)
    root = made.workspace
    run_git(root, "branch", "--move", "main")
    commit(root, "code.py", LINES)
    (root / "script").write_text("run\n")
    (root / "old name").write_text(LINES)
    run_git(root, "add", "--all")
    run_git(root, "commit", "--quiet", "-m", "Base")
    run_git(root, "switch", "--quiet", "--create", "work")
    commit(root, "code.py", LINES.replace("line 50\n", "changed <b>\u202e\n"))
    run_git(root, "mv", "old name", "new name")
    run_git(root, "commit", "--quiet", "-m", "Rename")
    (root / "script").chmod(0o755)
    (root / "picture").write_bytes(b"\0\xff")
    with made.agentctl(REAL):
        yield made


@pytest.fixture
def session(world: World, place: Place) -> TaskSession:
    made = world.running_session()
    Task.objects.update(base_branch="main")
    execution = ExecutorRunning.objects.get(session=made)
    execution.agentctl_url, execution.auth_token, execution.state = place.ready()["url"], TOKEN, place.state()
    execution.save()
    return made
