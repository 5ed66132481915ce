"""Creating a workspace of a large repository, beside git's own ways, one of which Kandev used before."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from executors_app.machine.git import workspace_root, worktrees
from executors_app.repositories.archive import Archive
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import publish
from tests.bench.figures import Figure, in_turn

FILE: Final = 1 << 20
"""Bytes of each file, whose content cannot be compressed."""


def of_a_repository(home: Path, megabytes: int, rounds: int) -> list[Figure]:
    """Measure the best rounds of a start; objects are copied once before them, as at the very first start."""
    with TemporaryDirectory(dir=home, prefix="workspaces-") as place:
        root = Path(place)
        team = _team(root / "team", megabytes)
        first = _seconds(lambda: ObjectStore.of(root / "data", TeamRepository.open(team)).update())
        bare = _seconds(lambda: _git(root, "clone", "--quiet", "--bare", "--no-local", str(team), "bare"))
        ours, shared, linked = map(min, asyncio.run(in_turn(rounds, *_ways(root, team))))
    name = f"{megabytes:,} MB repository"
    return [
        Figure(f"{name}, its objects copied once", first, "`git clone --bare`", bare),
        Figure(f"{name}, a workspace", ours, "`git worktree add`, as before", linked),
        Figure(f"{name}, a workspace", ours, "`git clone --shared`", shared),
    ]


def _ways(root: Path, team: Path) -> tuple[Callable[[], None], ...]:
    """Return functions that each create and remove the files of a session."""

    def ours() -> None:
        _make(root / "data", team, session := str(uuid.uuid4()))
        shutil.rmtree(root / "data" / "workspaces" / session)

    def shared() -> None:
        _git(root, "clone", "--quiet", "--shared", str(team), "shared")
        shutil.rmtree(root / "shared")

    def linked() -> None:
        _git(team, "worktree", "add", "--quiet", "--detach", str(root / "linked"))
        _git(team, "worktree", "remove", "--force", str(root / "linked"))

    return ours, shared, linked


def _make(data: Path, team: Path, session: str) -> None:
    """Do what a start on this machine's engine does: archive, seed, and the sandbox's repository and files."""
    repository = TeamRepository.open(team)
    store = ObjectStore.of(data, repository)
    archive, branch = Archive.of(data, session, store), worktrees.session_worktree(data, session).branch
    store.update()
    archive.begin(branch, repository.start_of(""))
    publish(repository, archive, branch)
    seed, root = data / "seed", data / "workspaces" / session
    archive.write_seed(
        seed,
        branch=branch,
        store=store,
        carried=repository.carried(),
        base="",
        borrow=[str(store.objects)],
        whole=True,
    )
    root.mkdir(parents=True)
    with seed.open("rb") as file:
        workspace_root.make_workspace_from_file(file, root, session)


def _team(path: Path, megabytes: int) -> Path:
    """Create a repository with one commit of ``megabytes`` files."""
    path.mkdir()
    _git(path, "init", "--quiet", "--initial-branch=main")
    words = ["git", "-C", str(path), "-c", "core.compression=0", "fast-import", "--quiet"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as importing:
        assert importing.stdin
        importing.stdin.write(b"commit refs/heads/main\ncommitter A <a@example.org> 0 +0000\ndata 0\n")
        for number in range(megabytes):
            importing.stdin.write(
                f"M 644 inline {number % 32}/{number}\ndata {FILE}\n".encode() + os.urandom(FILE) + b"\n"
            )
    assert importing.returncode == 0
    return path


def _git(at: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(at), *words], check=True, stdout=subprocess.DEVNULL)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
