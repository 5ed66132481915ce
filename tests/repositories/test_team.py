"""A team's repository is found and read as data; an unusable one is refused with advice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.repositories.carried_settings import strip_credentials
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import RepositoryUnusable
from tests.executors.repositories import commit, make_repository, run_git


@pytest.mark.parametrize("how", ["plain", "bare", "worktree", "separate", "link"])
def test_repository_is_found_in_every_layout(how: str, repository: Path, tmp_path: Path) -> None:
    path, head = tmp_path / "other", run_git(repository, "rev-parse", "HEAD")
    if how == "plain":
        path = repository
    elif how == "bare":
        run_git(tmp_path, "clone", "--quiet", "--bare", str(repository), str(path))
    elif how == "worktree":
        run_git(repository, "worktree", "add", "--quiet", "-b", "side", str(path))
        head = commit(path, "side", "x")
    elif how == "separate":
        run_git(tmp_path, "clone", "--quiet", f"--separate-git-dir={tmp_path / 'apart'}", str(repository), str(path))
    else:
        path.symlink_to(repository)
    assert TeamRepository.open(path).start_of("") == head


@pytest.mark.parametrize("name", ["with space", "with\nline", "with:colon", b"not-\xff-text"])
def test_repository_may_have_any_path(name: str | bytes, tmp_path: Path) -> None:
    path = make_repository(tmp_path / os.fsdecode(name))
    team = TeamRepository.open(path)
    assert team.published_refs() == {"refs/heads/main": run_git(path, "rev-parse", "HEAD")}


def test_base_is_a_local_or_remote_branch_or_any_revision(repository: Path, team: TeamRepository) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    run_git(repository, "update-ref", "refs/remotes/origin/far", first)
    second = commit(repository, "second", "x")
    run_git(repository, "tag", "-a", "-m", "one", "v1")
    bases = {"": second, "main": second, "far": first, "v1": second, first[:10]: first, "HEAD~1": first}
    assert {base: team.start_of(base) for base in bases} == bases
    for base in ("gone", "--output=x", "-x", "main\0", "main:second"):
        with pytest.raises(RepositoryUnusable, match="no commit at"):
            team.start_of(base)


def test_empty_repository_can_be_opened_and_has_no_start(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet", "empty")
    team = TeamRepository.open(tmp_path / "empty")
    assert team.published_refs() == {}
    with pytest.raises(RepositoryUnusable, match="no commit at 'HEAD'"):
        team.start_of("")


def test_published_refs_exclude_those_of_sessions(repository: Path, team: TeamRepository) -> None:
    run_git(repository, "tag", "v1")
    for name in ("refs/heads/kandev/1", "refs/kandev/recovery/1", "refs/stash", "refs/remotes/origin/main"):
        run_git(repository, "update-ref", name, "HEAD")
    run_git(repository, "symbolic-ref", "refs/heads/alias", "refs/kandev/recovery/1")
    assert set(team.published_refs()) == {"refs/heads/main", "refs/tags/v1", "refs/remotes/origin/main"}


def _alternates(common: Path) -> None:
    (common / "objects/info/alternates").write_text("/elsewhere/objects\n")


def _linked(name: str) -> Callable[[Path], None]:
    def link(common: Path) -> None:
        place = common / name
        elsewhere = common.parent / "elsewhere"
        if place.exists():
            place.rename(elsewhere)
        else:
            elsewhere.mkdir()
            place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(elsewhere)

    return link


def _file(name: str, text: str = "") -> Callable[[Path], None]:
    def write(common: Path) -> None:
        (common / name).parent.mkdir(exist_ok=True)
        (common / name).write_text(text)

    return write


def _configured(key: str, value: str) -> Callable[[Path], None]:
    def set_key(common: Path) -> None:
        run_git(common, "config", "core.repositoryFormatVersion", "1")
        run_git(common, "config", key, value)

    return set_key


REFUSED = {
    "alternates": (_alternates, "git repack -a -d"),
    "objects elsewhere": (_linked("objects"), "symbolic link"),
    "packs elsewhere": (_linked("objects/pack"), "symbolic link"),
    "refs elsewhere": (_linked("refs"), "symbolic link"),
    "branches elsewhere": (_linked("refs/heads/kandev"), "symbolic link below refs"),
    "own refs elsewhere": (_linked("refs/kandev"), "symbolic link below refs"),
    "packed refs elsewhere": (_linked("packed-refs"), "symbolic link"),
    "fan-out elsewhere": (_linked("objects/00"), "symbolic link"),
    "shallow": (_file("shallow"), "git fetch --unshallow"),
    "partial": (_file("objects/pack/pack-1.promisor"), "partial clone"),
    "reftable": (_file("reftable/tables.list"), "reftable"),
    "reftable configured": (_configured("extensions.refStorage", "reftable"), "refs as files"),
    "another common directory": (_file("commondir", "../../elsewhere"), "leads to another one"),
    "an unknown format": (_configured("extensions.objectFormat", "sha3"), "unknown format"),
    "no configuration": (_file("config", "[core\n"), "cannot be read"),
    "a long configuration": (_file("config", "#" * (1 << 20)), "too long"),
    "no objects": (lambda common: (common / "objects").rename(common / "gone"), "has no objects"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unusable_repository_is_rejected_with_advice(what: str, repository: Path) -> None:
    damage, words = REFUSED[what]
    damage(repository / ".git")
    with pytest.raises(RepositoryUnusable, match=words):
        TeamRepository.open(repository)


@pytest.mark.parametrize(
    "text", ["", "gitdir: ", "gitdir: /nowhere\n", "gitdir: x\0y", "elsewhere", "gitdir: " + "x" * 9000]
)
def test_invalid_git_pointer_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(text)
    with pytest.raises(RepositoryUnusable, match="not a usable git repository"):
        TeamRepository.open(tmp_path)


def test_named_pipe_in_place_of_a_file_does_not_block(repository: Path) -> None:
    for name in ("HEAD", "info/exclude", "config"):
        path = repository / ".git" / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    team = TeamRepository.open(repository)
    assert (team.head(), team.carried().exclude) == ("", "")


def test_carried_settings_are_read_as_data(repository: Path) -> None:
    for key, value in (
        ("user.name", "Somebody\x1b <x>"),
        ("user.email", "somebody@example.org"),
        ("remote.origin.url", "https://user:secret@example.org:8443/team.git?token=x#y"),
        ("remote.local.url", "/srv/git/team.git"),
        ("remote.command.url", "ext::sh -c touch% /tmp/canary"),
    ):
        run_git(repository, "config", key, value)
    (repository / ".git/info/exclude").write_text("*.log\n")
    hooks = repository / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name, mode in (("pre-commit", 0o755), ("commit-msg", 0o644), ("update.sample", 0o755), ("long", 0o755)):
        (hooks / name).write_bytes(b"#!/bin/sh\n" * (1 if name != "long" else 30_000))
        (hooks / name).chmod(mode)
    (hooks / "post-commit").symlink_to("/bin/true")
    carried = TeamRepository.open(repository).carried()
    assert carried.identity == {"name": "Somebody x", "email": "somebody@example.org"}
    assert carried.remotes == {"origin": "https://example.org:8443/team.git"}
    assert carried.exclude == "*.log\n"
    assert carried.hooks == {"pre-commit": b"#!/bin/sh\n"}


URLS = {
    "git@github.com:team/repo.git": "git@github.com:team/repo.git",
    "ssh://git:secret@example.org/x": "ssh://git@example.org/x",
    "ssh://-oProxyCommand=x/y": "",
    "-oProxyCommand=x:y": "",
    "https://token@example.org/x": "https://example.org/x",
    "git://[::1]:9418/x": "git://[::1]:9418/x",
    "http://example.org:port/x": "",
    "file:///srv/x": "",
    "../x": "",
    "C:\\x": "",
    "ext::sh": "",
    "ext:sh": "",
    "https://example.org/x\ny": "",
    "https://example.org/" + "x" * 3000: "",
    "": "",
}


@pytest.mark.parametrize("url", URLS)
def test_remote_is_carried_without_credentials_or_left_out(url: str) -> None:
    assert strip_credentials(url) == URLS[url]


def test_facade_is_removed_with_the_repository(repository: Path) -> None:
    team = TeamRepository.open(repository)
    facade = team.git.directory
    assert facade.is_dir()
    del team
    assert not facade.exists()
    assert repository.joinpath(".git/HEAD").exists()


def test_twenty_thousand_refs_are_read(repository: Path) -> None:
    head = run_git(repository, "rev-parse", "HEAD")
    lines = "".join(f"{head} refs/remotes/origin/{number:05}\n" for number in range(20_000))
    (repository / ".git/packed-refs").write_text(f"# pack-refs with: sorted \n{lines}")
    assert len(TeamRepository.open(repository).published_refs()) == 20_001


def test_reading_writes_nothing_to_the_repository(repository: Path) -> None:
    before = subprocess.check_output(["find", str(repository), "-printf", "%p %T@ %s\\n"])
    team = TeamRepository.open(repository)
    team.start_of("main")
    team.published_refs()
    team.carried()
    assert subprocess.check_output(["find", str(repository), "-printf", "%p %T@ %s\\n"]) == before
