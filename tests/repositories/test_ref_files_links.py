"""Whoever writes a team's ``.git`` reads no file of Kandev through it, and makes Kandev write nowhere else."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.untrusted_files import Directory
from executors_app.repositories import recovery_refs, ref_files, team, workspace_store
from executors_app.repositories.git import GitFailed
from executors_app.repositories.layout import checked_out_branches, common_directory
from executors_app.repositories.ref_files import FileModes
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import publish
from executors_app.wire.errors import NotKept, RepositoryUnusable
from tests.executors.repositories import commit, make_repository, run_git
from tests.repositories.workspaces import BRANCH, HEAD, OTHER, RECOVERY, SESSION, Place, make_turn

SECRET = "SECRET-of-the-control-plane"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return a directory of the control plane with files like those of a git directory."""
    folder = tmp_path / "secrets"
    (folder / "info").mkdir(parents=True)
    (folder / "hooks").mkdir()
    for name in ("exclude", "info/exclude", "hooks/pre-commit", "pre-commit", "packed-refs", "HEAD", "config"):
        (folder / name).write_text(f"{SECRET}\n")
        (folder / name).chmod(0o700)
    return folder


def exchange(path: Path, target: Path) -> None:
    """Put a link in place of a file or directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["info/exclude", "info", "hooks", "hooks/pre-commit", "config"])
def test_no_link_in_a_repository_is_followed_into_a_sandbox(
    name: str, repository: Path, place: Place, secrets: Path
) -> None:
    (repository / ".git/hooks").mkdir(exist_ok=True)
    exchange(repository / ".git" / name, secrets / name)
    place.begin()
    head, _ = place.seed(borrow=False, whole=False)
    assert SECRET not in str(head)
    assert "U0VDUkVU" not in str(head)  # base64


@pytest.mark.parametrize("name", ["info/exclude", "info", "hooks", "packed-refs", "refs", "config"])
def test_file_exchanged_after_the_check_is_not_read(name: str, repository: Path, secrets: Path) -> None:
    run_git(repository, "pack-refs", "--all")
    (repository / ".git/hooks").mkdir(exist_ok=True)
    team = TeamRepository.open(repository)
    exchange(repository / ".git" / name, secrets / name)
    reports = []
    for read in (team.carried, team.refs, lambda: team.commit_of("main"), lambda: team.git.run("for-each-ref")):
        try:
            reports.append(str(read()))
        except RepositoryUnusable as error:
            reports.append(error.message_for_staff)
    assert SECRET not in "".join(reports)


def test_directory_above_a_repository_exchanged_before_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in ("mine", "theirs"):
        (tmp_path / owner).mkdir()
        make_repository(tmp_path / owner / "repository", text=owner)

    def check_and_exchange(path: Path) -> Path:
        checked = common_directory(path)
        (tmp_path / "mine").rename(tmp_path / "moved")
        (tmp_path / "mine").symlink_to(tmp_path / "theirs")
        return checked

    monkeypatch.setattr(team, "common_directory", check_and_exchange)
    with pytest.raises(RepositoryUnusable, match="exchanged while it was opened"):
        TeamRepository.open(tmp_path / "mine" / "repository")


def test_repository_exchanged_as_a_whole_after_the_check_is_not_read(repository: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", text=SECRET)
    hidden = commit(other, "hidden", SECRET)
    team = TeamRepository.open(repository)
    mine = team.commit_of("main")
    (repository / ".git").rename(repository / "moved")
    (repository / ".git").symlink_to(other / ".git")
    assert team.commit_of("main") == mine
    assert team.commit_of(hidden) is None


@pytest.mark.parametrize("name", ["objects/pack", "objects/info"])
def test_objects_exchanged_after_the_check_are_not_read(name: str, repository: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", text=SECRET)
    hidden = run_git(other, "rev-parse", "HEAD")
    run_git(other, "repack", "-a", "-d", "-q")
    team = TeamRepository.open(repository)
    assert team.git.directory.is_dir()
    if name == "objects/pack":
        exchange(repository / ".git" / name, other / ".git" / name)
    else:
        (repository / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")
    assert team.commit_of(hidden) is None


def test_viewer_is_told_no_line_of_an_exchanged_file(
    repository: Path, secrets: Path, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    run_git(repository, "branch", BRANCH)
    opened = TeamRepository.open

    def open_and_exchange(path: Path) -> TeamRepository:
        team = opened(path)
        exchange(repository / ".git/packed-refs", secrets / "packed-refs")
        return team

    monkeypatch.setattr(TeamRepository, "open", open_and_exchange)
    with pytest.raises((NotKept, RepositoryUnusable)) as refused:
        recovery_refs.saved_status(recovery_refs.find_saved_work(repository, SESSION, BRANCH))
    assert SECRET not in refused.value.message_for_staff


@pytest.mark.parametrize("name", ["refs/heads/kandev", "refs/kandev", "refs/heads", "refs", "objects/pack", "objects"])
def test_pack_and_ref_are_not_written_through_links(
    name: str, place: Place, repository: Path, sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, archive = make_turn(place, sandbox, "one"), place.archive
    outside = tmp_path / "outside"
    for folder in ("heads/kandev", "kandev/recovery", "pack", "recovery"):
        (outside / folder).mkdir(parents=True)
    send = workspace_store._send

    def exchange_and_send(team: TeamRepository, *arguments: Any) -> None:
        exchange(repository / ".git" / name, outside)
        send(team, *arguments)

    monkeypatch.setattr(workspace_store, "_send", exchange_and_send)
    try:
        result = publish(place.team, archive, BRANCH)
    except RepositoryUnusable as error:
        assert str(tmp_path / "outside") not in error.message
    else:
        assert result.moved == {} or name.startswith("objects")
    assert not [path for path in outside.rglob("*") if path.is_file()]
    assert archive.tips()[HEAD] == made


def _pointer(target: Path) -> Callable[[Path], None]:
    def write(git: Path) -> None:
        git.write_text(f"gitdir: {target}\n")

    return write


def _link(target: Path) -> Callable[[Path], None]:
    def make(git: Path) -> None:
        git.symlink_to(target)

    return make


@pytest.mark.parametrize("how", [_pointer, _link])
def test_git_file_that_leads_to_other_data_is_refused(
    how: Callable[[Path], Callable[[Path], None]], place: Place, repository: Path, sandbox: Path, settings: Any
) -> None:
    settings.KANDEV_DATA_DIR = place.root
    archive = place.archive.path
    shutil.rmtree(repository / ".git")
    how(archive)(repository / ".git")
    with pytest.raises(RepositoryUnusable, match="Kandev's own data"):
        TeamRepository.open(repository)


@pytest.mark.parametrize("owner", [(12345, 0), (0, 12345)], ids=["user", "group"])
def test_git_file_that_leads_to_another_user_s_repository_is_refused(
    owner: tuple[int, int], repository: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    other = make_repository(tmp_path / "other")
    shutil.rmtree(repository / ".git")
    _pointer(other / ".git")(repository / ".git")
    for path in (other, *other.rglob("*"), repository, *repository.rglob("*")):
        os.chown(path, 0, 0, follow_symlinks=False)
    TeamRepository.open(repository)
    for path in (repository, *repository.rglob("*")):
        os.chown(path, *owner, follow_symlinks=False)
    with pytest.raises(RepositoryUnusable, match="belongs to another user or group"):
        TeamRepository.open(repository)


@pytest.mark.parametrize("name", ["HEAD", "config", "packed-refs", "refs/heads/kandev/1234567890ab", "info/exclude",
                                  "hooks/pre-commit", "worktrees/x/HEAD", "objects/info/alternates"])  # fmt: skip
def test_pipes_and_devices_do_not_block(name: str, repository: Path) -> None:
    path = repository / ".git" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o700)
    try:
        team = TeamRepository.open(repository)
    except RepositoryUnusable as error:
        assert name in error.message
        return
    team.carried()
    team.head()
    team.refs()
    checked_out_branches(team.directory)


def _sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(size)


def test_oversized_files_of_a_repository_are_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = repository / ".git"
    for name in ("info/exclude", "HEAD", "refs/heads/kandev/1234567890ab", "worktrees/x/HEAD", "hooks/pre-commit"):
        _sparse(common / name, 1 << 40)
    (common / "hooks/pre-commit").chmod(0o755)
    team = TeamRepository.open(repository)
    assert len(team.carried().exclude) <= 64 << 10
    assert team.carried().hooks == {}
    assert team.head() == ""
    assert HEAD not in team.refs()
    _sparse(common / "packed-refs", 1 << 40)
    with pytest.raises(RepositoryUnusable, match="too long"):
        TeamRepository.open(repository)


def test_directory_with_too_many_refs_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ref_files, "FILES_LIMIT", 100)
    for number in range(101):
        (repository / f".git/refs/heads/{number}").write_text("x")
    with pytest.raises(RepositoryUnusable, match="too many files"):
        TeamRepository.open(repository)


STRANGE_NAMES = [
    "refs/heads/a b", "refs/heads/a..b", "refs/heads/.a", "refs/heads/a.lock", "refs/heads/a\x1b", "refs/heads/a*",
    "refs/heads/a@{1}", "refs/heads/a.", "refs/heads/" + "a" * 2000, "main", "HEAD",
]  # fmt: skip


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_ref_with_a_name_that_git_refuses_is_left_out(name: str, repository: Path, team: TeamRepository) -> None:
    head = run_git(repository, "rev-parse", "HEAD")
    (repository / ".git/packed-refs").write_text(f"{head} refs/heads/fine\n{head} {name}\n")
    assert set(team.refs()) == {"refs/heads/main", "refs/heads/fine"}
    assert team.git.run("for-each-ref", "--format=%(refname)").split() == [b"refs/heads/fine", b"refs/heads/main"]


def test_refs_are_those_that_git_lists(repository: Path, tmp_path: Path) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    run_git(repository, "tag", "-a", "-m", "one", "v1")
    run_git(repository, "branch", "packed")
    run_git(repository, "branch", "both")
    run_git(repository, "pack-refs", "--all")
    second = commit(repository, "second", "x")
    run_git(repository, "update-ref", "refs/heads/both", second)
    run_git(repository, "update-ref", "refs/heads/deep/er/branch", first)
    run_git(repository, "symbolic-ref", "refs/heads/alias", "refs/heads/main")
    lines = run_git(repository, "for-each-ref", "--format=%(refname) %(objectname) %(symref)").splitlines()
    listed = dict(line.split() for line in lines if len(line.split()) == 2)
    team = TeamRepository.open(repository)
    assert team.refs() == listed
    assert set(team.refs("refs/heads/deep", "refs/tags/v1")) == {"refs/heads/deep/er/branch", "refs/tags/v1"}


def _update(repository: Path, changes: dict[str, tuple[str, str]]) -> None:
    ref_files.update_refs(Directory(repository / ".git"), changes, FileModes())


def test_refs_are_moved_all_or_none(repository: Path) -> None:
    first, second = run_git(repository, "rev-parse", "HEAD"), commit(repository, "second", "x")
    _update(repository, {HEAD: ("", first), RECOVERY: ("", first)})
    run_git(repository, "pack-refs", "--all")
    with pytest.raises(GitFailed, match="moved"):
        _update(repository, {HEAD: (first, second), RECOVERY: (second, first)})
    assert run_git(repository, "rev-parse", HEAD, RECOVERY).split() == [first, first]
    _update(repository, {HEAD: (first, second), RECOVERY: (first, "")})
    assert run_git(repository, "rev-parse", HEAD) == second
    assert run_git(repository, "for-each-ref", RECOVERY) == ""
    assert not list((repository / ".git").rglob("*.lock"))
    run_git(repository, "fsck")


class _Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_many_held_locks_are_waited_for_as_long_as_one(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    names = [f"refs/kandev/kept/{number}" for number in range(300)]
    for name in names[::2]:
        lock = repository / ".git" / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    clock = _Clock()
    monkeypatch.setattr(ref_files, "time", clock)
    groups = {name: {name: ("", first)} for name in names}
    refused = TeamRepository.open(repository).update_ref_groups(groups)
    assert set(refused) == set(names[::2])
    assert clock.now < 1.1
    assert set(run_git(repository, "for-each-ref", "--format=%(refname)", "refs/kandev").split()) == set(names[1::2])


def test_many_refs_are_locked_with_few_descriptors(repository: Path) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    groups = {name: {name: ("", first)} for name in (f"refs/kandev/kept/{number}" for number in range(500))}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    team = TeamRepository.open(repository)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(one.name) for one in Path("/proc/self/fd").iterdir()) + 300, hard)
    )
    try:
        assert team.update_ref_groups(groups) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_group_of_refs_moves_all_or_none_beside_others(repository: Path) -> None:
    first, second = run_git(repository, "rev-parse", "HEAD"), commit(repository, "second", "x")
    run_git(repository, "update-ref", "refs/kandev/kept/9", first)
    groups = {
        "moved": {HEAD: ("", second), RECOVERY: (first, second)},
        "new": {"refs/kandev/kept/1": ("", first), "refs/kandev/kept/2": ("", first)},
        "in the way": {"refs/kandev/kept/9/below": ("", first)},
    }
    refused = TeamRepository.open(repository).update_ref_groups(groups)
    assert set(refused) == {"moved", "in the way"}
    assert set(run_git(repository, "for-each-ref", "--format=%(refname)", "refs/kandev", "refs/heads").split()) == {
        "refs/heads/main",
        "refs/kandev/kept/1",
        "refs/kandev/kept/2",
        "refs/kandev/kept/9",
    }
    assert not list((repository / ".git").rglob("*.lock"))


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise in the main thread if what is inside still waits then."""

    def interrupt(*_: object) -> None:
        raise AssertionError("it still waits")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["refs/heads/kandev/1234567890ab.lock", "packed-refs.lock"])
def test_pipe_in_place_of_a_held_lock_does_not_block(
    name: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    _update(repository, {HEAD: ("", first), RECOVERY: ("", first)})
    run_git(repository, "pack-refs", "--all")
    second = commit(repository, "second", "x")
    lock = repository / ".git" / name
    read = ref_files.read_refs

    def exchange_and_read(directory: Directory) -> dict[str, str]:
        lock.unlink()
        os.mkfifo(lock)  # opening it for writing would wait for a reader
        return read(directory)

    monkeypatch.setattr(ref_files, "read_refs", exchange_and_read)
    with _interrupted_after(20.0), contextlib.suppress(GitFailed):
        _update(repository, {HEAD: (first, second), RECOVERY: (first, "")})
    assert not os.path.lexists(lock)


@pytest.mark.parametrize("ref", ["refs/heads/main/below", "refs/heads"])
def test_ref_in_the_way_of_another_is_refused(ref: str, repository: Path) -> None:
    run_git(repository, "pack-refs", "--all")
    with pytest.raises(GitFailed):
        _update(repository, {ref: ("", run_git(repository, "rev-parse", "HEAD"))})
    assert run_git(repository, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


def test_branch_wins_over_a_tag_of_the_same_name(repository: Path) -> None:
    first, second = run_git(repository, "rev-parse", "HEAD"), commit(repository, "second", "x")
    run_git(repository, "tag", "main", first)
    run_git(repository, "tag", "far", first)
    run_git(repository, "update-ref", "refs/remotes/origin/far", second)
    team = TeamRepository.open(repository)
    assert [team.start_of(base) for base in ("main", "far", "main~1", "refs/tags/main")] == [
        second,
        second,
        first,
        first,
    ]
    assert OTHER not in team.refs()
