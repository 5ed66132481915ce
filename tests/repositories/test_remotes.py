"""Pushes to real servers, over http and ssh: what they accept, refuse, and answer, and what never leaves us."""

from __future__ import annotations

import multiprocessing
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.repositories import git, remotes
from executors_app.repositories.remote_failures import RemoteCause, RemoteFailed, classify_failure
from executors_app.repositories.remote_keys import generate_key
from executors_app.repositories.remotes import Credential, Remote, scan_host_keys
from executors_app.repositories.team import TeamRepository
from tests.repositories.remote_servers import (
    TOKEN,
    USERNAME,
    GitHttpServer,
    GitSshServer,
    add_hook,
    hosted_refs,
    make_hosted,
)
from tests.services import require
from tests.waiting import PATIENCE, eventually

BRANCH = "refs/heads/kandev/1"


@pytest.fixture
def hosted(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    return make_hosted(tmp_path / "served" / "project.git")


@pytest.fixture
def http(tmp_path: Path, hosted: Path) -> Iterator[GitHttpServer]:
    server = GitHttpServer(hosted.parent)
    yield server
    server.close()


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitSshServer]:
    require("git over ssh")
    server = GitSshServer(tmp_path_factory.mktemp("sshd") / "server")
    yield server
    server.close()


@pytest.fixture
def over_http(http: GitHttpServer, tmp_path: Path) -> Remote:
    credential = Credential(username=USERNAME, token=TOKEN)
    return Remote(http.address("project.git"), credential, tmp_path / "remotes" / "1")


@pytest.fixture
def over_ssh(ssh: GitSshServer, hosted: Path, tmp_path: Path) -> Remote:
    return Remote(ssh.address(hosted), ssh.credential(), tmp_path / "remotes" / "2")


@pytest.fixture(params=["over_http", "over_ssh"])
def remote(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.getfixturevalue(request.param)
    return found


def commit_in(repository: Path, text: str) -> str:
    (repository / "file").write_text(text)
    run = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*run, "add", "file"], check=True)
    subprocess.run([*run, "commit", "-qm", text], check=True)
    found = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def failure_of(call: Callable[[], object]) -> RemoteFailed:
    with pytest.raises(RemoteFailed) as caught:
        call()
    return caught.value


def test_push_moves_exactly_one_branch_and_returns_the_answer(
    remote: Remote, repository: Path, team: TeamRepository, hosted: Path
) -> None:
    add_hook(hosted, "post-receive", "echo 'Create a pull request: https://example.org/new'")
    first = commit_in(repository, "one")
    assert remote.refs() == {}
    report = remote.push(team.git, first, BRANCH, "", wait=0)
    assert report.messages == "Create a pull request: https://example.org/new"
    assert remote.refs() == remote.refs(BRANCH) == hosted_refs(hosted) == {BRANCH: first}
    second = commit_in(repository, "two")
    team.refs()
    remote.push(team.git, second, BRANCH, first, wait=0)
    assert hosted_refs(hosted) == {BRANCH: second}
    # The same once more: whoever expects the earlier commit overwrites nothing.
    third = commit_in(repository, "three")
    assert failure_of(lambda: remote.push(team.git, third, BRANCH, first, wait=0)).cause == RemoteCause.MOVED
    assert failure_of(lambda: remote.push(team.git, third, BRANCH, "", wait=0)).cause == RemoteCause.MOVED
    assert hosted_refs(hosted) == {BRANCH: second}


def test_refusal_by_a_hook_keeps_its_words(
    remote: Remote, repository: Path, team: TeamRepository, hosted: Path
) -> None:
    add_hook(hosted, "pre-receive", "echo 'Permission denied: this branch is protected.' >&2; exit 1")
    failure = failure_of(lambda: remote.push(team.git, commit_in(repository, "one"), BRANCH, "", wait=0))
    assert failure.cause == RemoteCause.REFUSED
    assert failure.messages == "Permission denied: this branch is protected."
    assert hosted_refs(hosted) == {}


def test_wrong_token_wrong_key_and_missing_repository_are_told_apart(
    over_http: Remote, over_ssh: Remote, http: GitHttpServer, ssh: GitSshServer, tmp_path: Path
) -> None:
    wrong = replace(over_http, credential=replace(over_http.credential, token="other"))
    other_key = replace(over_ssh, credential=replace(over_ssh.credential, private_key=generate_key().private))
    causes = {
        "token": failure_of(wrong.refs).cause,
        "key": failure_of(other_key.refs).cause,
        "http": failure_of(replace(over_http, address=http.address("none.git")).refs).cause,
        "ssh": failure_of(replace(over_ssh, address=ssh.address(tmp_path / "none.git")).refs).cause,
        "no token": failure_of(replace(over_http, credential=Credential()).refs).cause,
    }
    denied, missing = RemoteCause.DENIED, RemoteCause.NOT_FOUND
    nothing = RemoteCause.CREDENTIAL_MISSING
    assert causes == {"token": denied, "key": denied, "http": missing, "ssh": missing, "no token": nothing}


def test_other_host_key_ends_the_connection_before_anything_is_sent(over_ssh: Remote, ssh: GitSshServer) -> None:
    assert tuple(scan_host_keys(over_ssh.address)) == ssh.host_keys()
    parts = generate_key().public.split()
    other = replace(ssh.host_keys()[0], blob=parts[1])
    changed = replace(over_ssh, credential=replace(over_ssh.credential, host_keys=(other,)))
    unknown = replace(over_ssh, credential=replace(over_ssh.credential, host_keys=()))
    assert failure_of(changed.refs).cause == RemoteCause.HOST_KEY_CHANGED
    assert failure_of(unknown.refs).cause == RemoteCause.HOST_KEY_UNKNOWN


def test_server_that_does_not_listen_is_unreachable(over_http: Remote, over_ssh: Remote, http: GitHttpServer) -> None:
    http.close()
    assert failure_of(over_http.refs).cause == RemoteCause.UNREACHABLE
    closed = replace(over_ssh.address, text=over_ssh.address.text.replace(f":{over_ssh.address.port}", ":1"), port=1)
    assert failure_of(replace(over_ssh, address=closed).refs).cause == RemoteCause.UNREACHABLE
    assert failure_of(lambda: scan_host_keys(closed)).cause == RemoteCause.UNREACHABLE


def test_configuration_of_the_operating_user_has_no_effect(
    over_http: Remote, http: GitHttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[url "http://127.0.0.1:1/"]\n\tinsteadOf = {over_http.address.text}\n[http]\n\textraHeader = X-Own: secret\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.proxy")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "http://127.0.0.1:1/")
    assert over_http.refs() == {}
    assert http.authorizations


def test_credential_is_in_a_private_file_only_while_it_is_used(over_http: Remote, http: GitHttpServer) -> None:
    place = over_http.directory
    seen: list[tuple[set[str], set[int]]] = []
    answer = http.answer

    def look(request: object, body: bytes) -> None:
        files = [path for path in place.iterdir() if path.name != "lock"]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (place, *files)}
        seen.append(({path.name for path in files}, modes))
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            assert TOKEN.encode() not in _content(process)
        for process in Path("/proc").glob("[0-9]*/environ"):
            assert TOKEN.encode() not in _content(process)
        answer(request, body)  # type: ignore[arg-type]

    http.answer = look  # type: ignore[method-assign]
    over_http.refs()
    assert seen
    assert all(files == {"credential"} and modes == {0o700, 0o600} for files, modes in seen)
    assert [path.name for path in place.iterdir()] == ["lock"]
    assert TOKEN not in "".join(http.paths)
    # What a killed process has left is removed by the next connection.
    (place / "key").write_text("left")
    over_http.refs()
    assert [path.name for path in place.iterdir()] == ["lock"]


def test_token_is_not_sent_on_to_another_server(over_http: Remote, http: GitHttpServer, tmp_path: Path) -> None:
    other = GitHttpServer(tmp_path)

    def redirect(request: object, body: bytes) -> None:
        request.send_response(302)  # type: ignore[attr-defined]
        request.send_header("Location", f"http://127.0.0.1:{other.port}{request.path}")  # type: ignore[attr-defined]
        request.send_header("Content-Length", "0")  # type: ignore[attr-defined]
        request.end_headers()  # type: ignore[attr-defined]

    http.answer = redirect  # type: ignore[method-assign]
    failure = failure_of(over_http.refs)
    other.close()
    assert failure.cause == RemoteCause.REDIRECTED
    assert other.paths == []


def test_push_that_a_killed_process_has_left_behind_ends_by_itself(
    over_ssh: Remote, repository: Path, team: TeamRepository, hosted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_in(repository, "one")
    monkeypatch.setattr(remotes, "PUSH", replace(remotes.PUSH, seconds=3.0))
    monkeypatch.setattr(git, "ORPHAN_GRACE", 0.0)
    (hosted / "hold").touch()
    add_hook(hosted, "pre-receive", "touch begun; while [ -e hold ]; do sleep 0.1; done; exit 1")
    child = multiprocessing.get_context("fork").Process(
        target=lambda: over_ssh.push(team.git, commit, BRANCH, "", wait=0)
    )
    child.start()
    try:
        eventually(lambda: (hosted / "begun").exists() or not child.is_alive(), describe="the server is busy with it")
        child.kill()
        child.join()
        # Its git holds the lock while it lives, and the server would never let it end.
        assert over_ssh.refs(wait=PATIENCE) == {}
    finally:
        (hosted / "hold").unlink()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_push_of_which_the_server_does_not_tell_the_outcome_is_not_called_refused(
    over_http: Remote, http: GitHttpServer, hosted: Path, repository: Path, team: TeamRepository
) -> None:
    commit = commit_in(repository, "one")
    http.answers_pushes = False
    failure = failure_of(lambda: over_http.push(team.git, commit, BRANCH, "", wait=0))
    assert failure.cause == RemoteCause.FAILED
    assert hosted_refs(hosted) == {BRANCH: commit}


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        (
            "fatal: unable to access 'https://tls.example/tls/certificate.git/': Connection reset by peer",
            RemoteCause.UNREACHABLE,
        ),
        ("ssh: Could not resolve hostname tls.example: Name or service not known", RemoteCause.UNREACHABLE),
        ("git@tls.example: Permission denied (publickey).", RemoteCause.DENIED),
        ("fatal: Authentication failed for 'https://tls.example/timeout.git/'", RemoteCause.DENIED),
        ("fatal: repository 'https://tls.example/tls.git/' not found", RemoteCause.NOT_FOUND),
        ("fatal: 'error: 301/x' does not appear to be a git repository", RemoteCause.NOT_FOUND),
        (
            "fatal: unable to access 'https://tls.example/x/': SSL certificate problem: self-signed certificate",
            RemoteCause.CERTIFICATE,
        ),
        (
            "fatal: unable to access 'https://tls.example/x/': Failed to connect to tls.example: Couldn't connect",
            RemoteCause.UNREACHABLE,
        ),
    ],
)
def test_words_in_an_address_are_no_reason(errors: str, cause: RemoteCause) -> None:
    assert classify_failure(errors, "tls.example") is cause


def test_branches_of_a_large_repository_are_listed(
    over_http: Remote, hosted: Path, repository: Path, team: TeamRepository
) -> None:
    commit = commit_in(repository, "one")
    over_http.push(team.git, commit, BRANCH, "", wait=0)
    names = [f"refs/heads/{number:05}" for number in range(6000)]
    lines = "".join(f"{commit} {name}\n" for name in names)
    (hosted / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{lines}")
    assert set(names) <= over_http.refs().keys()
