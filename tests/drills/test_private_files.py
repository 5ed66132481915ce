"""No other user of the machine can read the data directory, whatever sessions do and whatever was there before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sessions_app.management.startup import AGENT_DIRECTORIES, restrict_permissions
from tests.drills.deployment import Deployment
from tests.waiting import eventually


def open_to_others(directory: Path) -> list[str]:
    """Return what other users could read or change below ``directory``, except for files that agents made."""
    found = []
    for folder, folders, files in os.walk(directory):
        if Path(folder).parent == directory and Path(folder).name in AGENT_DIRECTORIES:
            folders.clear()
            files.clear()
        modes = {name: (Path(folder) / name).lstat().st_mode for name in (*folders, *files)}
        found += [f"{folder}/{name}" for name, mode in modes.items() if mode & 0o077 and not stat.S_ISLNK(mode)]
    return found


@pytest.mark.any_database
def test_all_files_are_private_after_a_full_session_life(deployment: Deployment) -> None:
    umask = os.umask(0o022)
    try:
        kept = deployment.data / "sessions" / "copied-by-hand.json"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("{}")
        (deployment.data / "serve.json").write_text("{}")
        (deployment.data / "kandev.sqlite3").chmod(0o644)
        deployment.serve()
        session = deployment.start_session("remember heron\nwrite kept.txt hello")
        session.wait_for("WAITING_FOR_INPUT")
        session.kill_everything()
        eventually(lambda: len(session.receipts()) >= 2, timeout=60, describe="the session is resumed")
        deployment.manage("create_demo")
        deployment.manage("maintain")
        eventually(
            lambda: not open_to_others(deployment.data), timeout=60, describe="all files are private while Kandev runs"
        )
        names = {path.name for path in deployment.data.iterdir()}
        assert {"kandev.sqlite3", "kandev.sqlite3-wal", "secret-key", "sessions", "worktrees"} <= names
        deployment.kill_server()
    finally:
        os.umask(umask)
    assert open_to_others(deployment.data) == []
    assert stat.S_IMODE(deployment.data.stat().st_mode) == 0o700


def test_restricting_permissions_skips_links_and_files_of_agents(tmp_path: Path) -> None:
    outside, data = tmp_path / "outside", tmp_path / "data"
    for path in (
        outside,
        data / "worktrees" / "one" / "tool",
        data / "demo-repository" / "branch",
        data / "hosts" / "build",
        data / "repository" / "object",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        path.chmod(0o755)
    (data / "link").symlink_to(outside)
    os.link(data / "repository" / "object", tmp_path / "object of another repository")
    restrict_permissions(data)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (outside, *data.rglob("*"))}
    assert (modes[outside], modes[data / "hosts"], modes[data / "hosts" / "build"]) == (0o755, 0o700, 0o700)
    assert (modes[data / "worktrees"], modes[data / "worktrees" / "one" / "tool"]) == (0o700, 0o755)
    assert (modes[data / "demo-repository"], modes[data / "demo-repository" / "branch"]) == (0o700, 0o755)
    assert modes[data / "repository" / "object"] == 0o755
    assert restrict_permissions(data) == 0
