"""agentctl snapshots uncommitted work around each turn and at its end without disturbing turns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.preparation import WorkspacePreparation
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git import recovery_snapshots
from tests.agentctl.running import Running, agentctl
from tests.executors.repositories import commit, make_repository, run_git
from tests.waiting import eventually_async
from tests.workspace.trees import add_submodule

REF = "refs/kandev/recovery/session-1"


def reasons(running: Running) -> list[str]:
    return [line["reason"] for line in running.lines() if line["kind"] == "workspace.snapshot"]


async def test_snapshot_is_taken_before_and_after_each_turn(running: Running, repository: Path) -> None:
    (repository / "mine").write_text("x")
    await running.start()

    await running.prompt("hello")
    await running.line("turn.completed")

    snapshot = await running.line("workspace.snapshot")
    assert (snapshot["reason"], snapshot["ref"], snapshot["dirty"]) == ("turn_start", REF, True)
    kinds = running.kinds()
    assert kinds.index("prompt.accepted") < kinds.index("workspace.snapshot") < kinds.index("prompt.delivered")
    await running.sidecar.snapshots.take("asked")
    assert reasons(running)[:2] == ["turn_start", "turn_end"]
    assert set(run_git(repository, "ls-tree", "--name-only", REF).split()) == {"README", "delivered.txt", "mine"}


async def test_file_that_is_too_large_is_named_in_the_journal_once(running: Running, repository: Path) -> None:
    running.sidecar.snapshots._limits = SnapshotLimits(file=1000)
    await running.sidecar.snapshots.take("asked")
    (repository / "big").write_text("x" * 2000)
    for _ in range(2):
        await running.sidecar.snapshots.take("asked")

    await running.sidecar.journal.flush()
    lines = [line for line in running.lines() if line["kind"] == "workspace.snapshot"]
    assert [(line["left_out"], line["left_out_count"]) for line in lines] == [([], 0), (["big"], 1)]
    head, branch = run_git(repository, "rev-parse", "HEAD"), run_git(repository, "branch", "--show-current")
    assert [(line["head"], line["branch"]) for line in lines] == [(head, branch)] * 2


async def test_work_of_a_dying_agent_is_kept(running: Running, repository: Path) -> None:
    await running.start()
    await running.prompt("die")
    await running.line("agent.exited")
    await running.sidecar.snapshots.take("asked")
    assert reasons(running)[:2] == ["turn_start", "turn_end"]


async def test_commit_or_file_of_a_person_is_kept_before_the_next_turn(running: Running, repository: Path) -> None:
    for name in ("committed", "unfinished"):
        (repository / name).write_text("x")
    status, answer = await running.post("/git/commit", message="Some of it", paths=["committed"])
    assert status == 200, answer
    assert (await running.line("workspace.snapshot"))["head"] == answer["commit"]
    assert run_git(repository, "cat-file", "-p", f"{REF}:unfinished") == "x"

    status, answer = await running.put("written", b"y")
    assert status == 201, answer
    assert await eventually_async(lambda: len(reasons(running)) == 2)
    assert run_git(repository, "cat-file", "-p", f"{REF}:written") == "y"


async def test_last_state_is_kept_at_shutdown(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running:
        run_git(running.workspace, "init", "--quiet")
        (running.workspace / "mine").write_text("x")
        assert (await running.post("/shutdown", stop_agent=True))[0] == 200
        await running.line("workspace.snapshot")
        assert reasons(running) == ["shutdown"]
    assert run_git(tmp_path / "workspace", "ls-tree", "--name-only", REF) == "mine"


async def test_failed_snapshot_is_logged_and_the_turn_continues(running: Running) -> None:
    (running.workspace / ".git").write_text("gitdir: /nowhere\n")
    await running.start()
    await running.prompt("hello")
    await running.line("turn.completed")
    line = await running.line("log")
    assert line["text"] == "no snapshot of the working tree could be taken"
    assert "not a git repository" in line["data"]["error"]


async def test_hanging_snapshot_delays_a_turn_only_up_to_its_limit(running: Running, repository: Path) -> None:
    run_git(repository, "config", "filter.stuck.clean", "sleep 600")
    (repository / ".gitattributes").write_text("*.stuck filter=stuck\n")
    (repository / "a.stuck").write_text("x")
    running.sidecar.snapshots._limits = SnapshotLimits(seconds=3.0, turn_waits=0.2, end_waits=0.2)
    await running.start()

    await running.prompt("hello")
    completed = await running.line("turn.completed")

    late = await running.line("log")
    assert "did not finish" in late["data"]["error"]
    assert completed["seq"] < late["seq"]


async def test_workspace_without_a_repository_takes_no_snapshots_silently(started: Running) -> None:
    await started.prompt("hello")
    await started.line("turn.completed")
    assert not {"workspace.snapshot", "log"} & set(started.kinds())
    assert (await started.post("/snapshot"))[1]["code"] == "git_failed"


async def test_removed_git_directory_is_warned_about_once(running: Running, repository: Path) -> None:
    running.sidecar.snapshots.after_turn()
    await running.line("workspace.snapshot")
    shutil.move(repository / ".git", repository.parent / "elsewhere")
    for _ in range(2):
        running.sidecar.snapshots.after_turn()
    assert "no longer a git repository" in (await running.line("log"))["text"]
    shutil.move(repository.parent / "elsewhere", repository / ".git")
    (repository / "new").write_text("x")
    await running.sidecar.snapshots.before_turn()
    shutil.rmtree(repository / ".git")
    running.sidecar.snapshots.after_turn()
    assert await eventually_async(lambda: running.kinds().count("log") >= 2)
    assert running.kinds().count("log") == 2


async def test_repository_in_place_of_the_worktrees_own_is_warned_about(running: Running, repository: Path) -> None:
    workspace = running.sidecar.workspace
    workspace.preparation = WorkspacePreparation(repository / "seed", repository, "session-1", repository)
    await running.sidecar.snapshots.before_turn()
    await running.sidecar.snapshots.before_turn()
    warning = await running.line("log")
    assert running.kinds().count("log") == 1
    assert "replaced by a repository" in warning["text"]


async def test_status_tells_whether_the_workspace_is_dirty(running: Running, repository: Path) -> None:
    async def dirty() -> bool | None:
        return (await running.get("/status"))["workspace"]["dirty"]  # type: ignore[no-any-return]

    assert await dirty() is None
    await running.post("/snapshot")
    assert await dirty() is False
    (repository / "new").write_text("x")
    status, answer = await running.post("/snapshot")
    assert await dirty() is True
    assert (status, answer["ref"], answer["dirty"], answer["changed"], answer["left_out"]) == (200, REF, True, True, [])


async def test_snapshot_is_restored_and_the_replaced_state_is_kept(running: Running, repository: Path) -> None:
    (repository / "README").write_text("good\n")
    (repository / "new").write_text("good\n")
    _, good = await running.post("/snapshot")
    (repository / "README").write_text("bad\n")
    (repository / "new").unlink()

    status, answer = await running.post("/snapshot/restore", commit=good["commit"])

    assert (status, answer["restored"]) == (200, good["commit"])
    assert [(repository / name).read_text() for name in ("README", "new")] == ["good\n", "good\n"]
    assert run_git(repository, "status", "--porcelain") == "M README\n?? new"
    assert run_git(repository, "show", f"{answer['kept']}:README") == "bad"


@pytest.mark.parametrize("moved", [False, True])
async def test_restoring_a_snapshot_restores_what_is_inside_submodules(
    running: Running, repository: Path, tmp_path: Path, moved: bool
) -> None:
    library = make_repository(tmp_path / "library", "f.txt", "lib\n")
    add_submodule(repository, library)
    (repository / "sub" / "f.txt").write_text("good\n")
    (repository / "sub" / "new").write_text("good\n")
    _, good = await running.post("/snapshot")
    (repository / "sub" / "f.txt").write_text("bad\n")
    (repository / "sub" / "new").unlink()
    if moved:
        commit(repository / "sub", "f.txt", "committed\n")

    assert (await running.post("/snapshot/restore", commit=good["commit"]))[0] == 200

    if moved:
        assert (repository / "sub" / "f.txt").read_text() == "committed\n"
        assert "new commits since the last snapshot" in (await running.line("log"))["text"]
    else:
        assert [(repository / "sub" / name).read_text() for name in ("f.txt", "new")] == ["good\n", "good\n"]
        assert run_git(repository / "sub", "status", "--porcelain") == "M f.txt\n?? new"


async def test_restoring_the_newest_snapshot_of_the_present_state_changes_nothing(
    running: Running, repository: Path
) -> None:
    (repository / "new").write_text("x")
    _, taken = await running.post("/snapshot")
    assert await running.post("/snapshot/restore") == (200, {"restored": taken["commit"], "kept": None})


async def test_snapshot_from_before_a_commit_is_not_restored(running: Running, repository: Path) -> None:
    (repository / "new").write_text("x")
    _, taken = await running.post("/snapshot")
    commit(repository, "new", "committed\n")
    status, answer = await running.post("/snapshot/restore", commit=taken["commit"])
    assert (status, answer["code"]) == (409, "conflict")
    assert (repository / "new").read_text() == "committed\n"


@pytest.mark.parametrize(
    ("named", "status"),
    [("HEAD", 400), ("--all", 400), ("0" * 39, 400), ("0" * 40, 404), ("head", 404), ("theirs", 404), ("", 404)],
)
async def test_only_snapshots_of_this_session_are_restored(
    running: Running, repository: Path, named: str, status: int
) -> None:
    (repository / "new").write_text("x")
    _, taken = await running.post("/snapshot")
    run_git(repository, "update-ref", "-d", REF)
    message = run_git(repository, "log", "-1", "--format=%B", taken["commit"]).replace("session-1", "session-2")
    theirs = run_git(repository, "commit-tree", f"{taken['commit']}^{{tree}}", "-m", message)
    named = {"head": run_git(repository, "rev-parse", "HEAD"), "theirs": theirs}.get(named, named)

    assert (await running.post("/snapshot/restore", commit=named))[0] == status
    assert (repository / "new").read_text() == "x"


@pytest.mark.parametrize("is_packed", [False, True], ids=["symbolic", "packed"])
async def test_planted_recovery_ref_is_replaced_and_never_followed(
    running: Running, repository: Path, *, is_packed: bool
) -> None:
    (repository / "mine").write_text("1")
    first = await running.sidecar.snapshots.take("asked")
    run_git(repository, "branch", "bait", first.commit)
    if is_packed:
        run_git(repository, "update-ref", REF, "HEAD")
        run_git(repository, "pack-refs", "--all")
    else:
        run_git(repository, "symbolic-ref", REF, "refs/heads/bait")
    (repository / "mine").write_text("2")
    second = await running.sidecar.snapshots.take("asked")
    assert run_git(repository, "rev-parse", REF, "bait").split() == [second.commit, first.commit]
    assert run_git(repository, "for-each-ref", "--format=%(symref)", REF) == ""


async def test_kept_ref_is_not_followed_to_a_branch(running: Running, repository: Path) -> None:
    (repository / "mine").write_text("1")
    first = await running.sidecar.snapshots.take("asked")
    found = recovery_snapshots.find_recovery(running.sidecar.workspace.git.text, REF)
    assert found is not None
    aside = f"refs/kandev/kept/session-1/{first.commit[:16]}"
    run_git(repository, "symbolic-ref", aside, "refs/heads/bait")
    assert recovery_snapshots.set_recovery_aside(running.sidecar.workspace.git.text, found) == aside
    assert run_git(repository, "rev-parse", aside) == first.commit
    assert run_git(repository, "branch", "--list", "bait") == ""
