"""Talk to the server that a team's branches are pushed to: list its refs, and move one of them.

git and ssh read no configuration of this machine or its users, use no agent and no key but the given one, know no host
but the confirmed one, follow no redirection, and run no hook. The key or token is in a file that only we can read, in
a directory that the next connection to the same server empties if this process was killed. It is never an argument, a
variable or part of an address.

One connection to a server is open at a time. git inherits its lock: after a crash, the next one begins only when the
git of the killed process has ended, so what it did is known by then.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from executors_app.machine.git.git_process import setting_options
from executors_app.machine.git.ref_locks import wait_for_lock
from executors_app.repositories import git_errors
from executors_app.repositories.bare import OBJECT_ID
from executors_app.repositories.git import Bounds, FinishedProcess, Git, git_command, run_to_end
from executors_app.repositories.remote_address import RemoteAddress
from executors_app.repositories.remote_failures import (
    RemoteCause,
    RemoteFailed,
    classify_failure,
    classify_rejection,
)
from executors_app.repositories.remote_keys import HostKey, known_hosts_file, read_host_keys
from executors_app.wire.errors import RepositoryUnusable

logger = logging.getLogger(__name__)

LIST: Final = Bounds(memory=1 << 30, cpu=10, seconds=20.0, output=16 << 20, file=1 << 20)
"""For listing refs, also those of large repositories; file: what ssh and curl may write."""
PUSH: Final = Bounds(memory=4 << 30, cpu=900, seconds=600.0, output=1 << 16, file=8 << 30)
"""For a push with its hooks on the server."""
SCAN_SECONDS: Final = 10
MESSAGES_LIMIT: Final = 4000
"""Characters of what a server said that are kept."""
_SCAN: Final = Bounds(memory=1 << 30, cpu=10, seconds=SCAN_SECONDS + 5.0, output=1 << 16, file=0)
_PRIVATE: Final = 0o700
_KEY, _KNOWN_HOSTS, _CREDENTIAL, _LOCK = "key", "known_hosts", "credential", "lock"
_CREDENTIAL_VARIABLE: Final = "KANDEV_GIT_CREDENTIAL"
_HELPER: Final = f'!f() {{ test "$1" = get && exec cat "${_CREDENTIAL_VARIABLE}"; }}; f'
"""git runs it in a shell and reads the user name and token from its output."""
_REMOTE_LINE: Final = "remote:"
_HEADS: Final = "refs/heads/"


@dataclass(frozen=True, slots=True)
class Credential:
    """What logs in at a server; which part is used follows from its address."""

    private_key: str = field(default="", repr=False)
    host_keys: tuple[HostKey, ...] = ()
    """The confirmed keys of the server."""
    username: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a server answered to a push that it carried out."""

    messages: str
    """What it said, such as where a pull request can be opened; its text is not ours."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository on a server, and what logs in there."""

    address: RemoteAddress
    credential: Credential
    directory: Path
    """A directory of ours for this server alone, which need not exist."""

    def refs(self, *names: str, wait: float = 0.0) -> dict[str, str]:
        """Return the commits of the full refs with these names that exist there; without names, of all branches.

        ``wait``: seconds to wait for another connection to end. Raises RemoteFailed.
        """
        wanted = names or (f"{_HEADS}*",)
        with self._connection(wait) as connection:
            done = connection.run(LIST, "ls-remote", "--refs", "--quiet", self.address.text, *wanted)
            if done.exit_code != 0:
                raise _failed("ls-remote", done, self.address.host)
        found = dict(_read_refs(done.output))
        if names:
            return {name: commit for name, commit in found.items() if name in names}
        return found

    def push(self, source: Git, commit: str, ref: str, expected: str, *, wait: float) -> PushReport:
        """Move ``ref`` there from the commit ``expected`` (empty: it does not exist) to ``commit``.

        The server compares and moves in one step, so nothing that arrived meanwhile is overwritten. Whether the
        expected commit may be left behind is the caller's decision. Raises RemoteFailed.
        """
        if not OBJECT_ID.fullmatch(commit) or not ref.startswith(_HEADS):
            raise ValueError(f"not a commit and a branch: {commit!r}, {ref!r}")
        with self._connection(wait) as connection:
            done = connection.run(
                PUSH,
                "push",
                "--porcelain",
                "--no-verify",
                "--no-follow-tags",
                "--recurse-submodules=no",
                f"--force-with-lease={ref}:{expected}",
                self.address.text,
                f"{commit}:{ref}",
                source=source,
            )
        messages = _messages(done.errors)
        rejection = _rejection(done.output, ref)
        if rejection is not None:
            raise RemoteFailed(classify_rejection(rejection), messages=messages)
        if done.exit_code != 0:
            raise _failed("push", done, self.address.host)
        return PushReport(messages)

    @contextmanager
    def _connection(self, wait: float) -> Iterator[_Connection]:
        self._check_credential()
        self.directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not wait_for_lock(lock, wait):
                raise RemoteFailed(RemoteCause.BUSY)
            remove_credentials(self.directory)
            try:
                yield self._prepare(lock)
            finally:
                remove_credentials(self.directory)
        finally:
            os.close(lock)

    def _check_credential(self) -> None:
        if self.address.is_ssh and not self.credential.host_keys:
            raise RemoteFailed(RemoteCause.HOST_KEY_UNKNOWN)
        if not (self.credential.private_key if self.address.is_ssh else self.credential.token):
            raise RemoteFailed(RemoteCause.CREDENTIAL_MISSING)

    def _prepare(self, lock: int) -> _Connection:
        """Write what logs in, and return how git is to be run."""
        settings = [
            f"protocol.{self.address.scheme}.allow=always",
            "http.followRedirects=false",
            "http.lowSpeedLimit=100",
            "http.lowSpeedTime=60",
            "credential.helper=",
            "push.gpgSign=false",
            "push.pushOption=",
        ]
        environment = _environment(self.directory)
        if self.address.is_ssh:
            _write_private(self.directory / _KEY, self.credential.private_key)
            known = known_hosts_file(self.address.known_host, self.credential.host_keys)
            _write_private(self.directory / _KNOWN_HOSTS, known)
            environment["GIT_SSH_COMMAND"] = shlex.join(_ssh_command(self.directory))
            environment["GIT_SSH_VARIANT"] = "ssh"
        else:
            username = self.credential.username or "git"
            text = f"username={username}\npassword={self.credential.token}\n"
            _write_private(self.directory / _CREDENTIAL, text)
            environment[_CREDENTIAL_VARIABLE] = str(self.directory / _CREDENTIAL)
            settings.append(f"credential.helper={_HELPER}")
        return _Connection(self.directory, environment, setting_options(settings), lock)


@dataclass(frozen=True, slots=True)
class _Connection:
    """How git is run while the credential is there."""

    directory: Path
    environment: Mapping[str, str]
    options: Sequence[str]
    lock: int

    def run(self, bounds: Bounds, *arguments: str, source: Git | None = None) -> FinishedProcess:
        """Run git; ``source`` has the objects to be sent. Raises RemoteFailed if it does not finish in time."""
        environment = {**self.environment, "GIT_ALLOC_LIMIT": str(bounds.memory // 2)}
        # ``/proc`` is never a repository, so git reads no configuration there.
        directory, descriptors = Path("/proc"), [self.lock]
        if source is not None:
            directory = source.directory
            descriptors += source.descriptors
        environment["GIT_DIR"] = str(directory)
        done = run_to_end(
            git_command(*self.options, *arguments),
            bounds,
            cwd=directory,
            environment=environment,
            descriptors=descriptors,
        )
        if done.exit_code is None:
            raise RemoteFailed(RemoteCause.TIMEOUT)
        return done


def scan_host_keys(address: RemoteAddress) -> list[HostKey]:
    """Ask a server for its keys, which prove nothing until a person has compared them. Raises RemoteFailed."""
    scanner = shutil.which("ssh-keyscan")
    if scanner is None:
        raise RepositoryUnusable("ssh-keyscan is not on PATH. Install OpenSSH's client.")
    command = [scanner, "-T", str(SCAN_SECONDS), "-p", str(address.port or 22), "--", address.host]
    done = run_to_end(command, _SCAN, cwd=Path("/"), environment=_environment(Path("/nonexistent")))
    if done.exit_code is None:
        raise RemoteFailed(RemoteCause.TIMEOUT)
    lines = done.output.decode("ascii", "replace").splitlines()
    keys = read_host_keys(line for line in lines if not line.startswith("#"))
    if not keys:
        raise RemoteFailed(RemoteCause.UNREACHABLE)
    return keys


def _environment(home: Path) -> dict[str, str]:
    """Build the environment from scratch; a home without files keeps every program from what a user configured."""
    search = [str(Path(git_command()[0]).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(search)),
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ASKPASS": "/bin/false",
        "SSH_ASKPASS": "/bin/false",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }


def _ssh_command(directory: Path) -> list[str]:
    options = (
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "AddKeysToAgent=no",
        "BatchMode=yes",
        "PreferredAuthentications=publickey",
        "PasswordAuthentication=no",
        "KbdInteractiveAuthentication=no",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={directory / _KNOWN_HOSTS}",
        f"GlobalKnownHostsFile={os.devnull}",
        "UpdateHostKeys=no",
        "VerifyHostKeyDNS=no",
        "CheckHostIP=no",
        "ConnectTimeout=15",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=4",
        "ForwardAgent=no",
        "ForwardX11=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ControlMaster=no",
        "ControlPath=none",
        "LogLevel=ERROR",
    )
    command = ["ssh", "-F", os.devnull, "-i", str(directory / _KEY)]
    for option in options:
        command += ["-o", option]
    return command


def _write_private(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        file.write(text)


def remove_credentials(directory: Path) -> None:
    """Remove what a connection has written to log in, also one whose process was killed.

    The caller holds the directory's lock, or wants the connection that does to fail.
    """
    for name in (_KEY, _KNOWN_HOSTS, _CREDENTIAL):
        (directory / name).unlink(missing_ok=True)


def _read_refs(output: bytes) -> Iterator[tuple[str, str]]:
    for line in output.decode("utf-8", "surrogateescape").splitlines():
        commit, _, name = line.partition("\t")
        if OBJECT_ID.fullmatch(commit) and name.startswith("refs/"):
            yield name, commit


def _rejection(output: bytes, ref: str) -> str | None:
    """Return why the server did not move the ref, from the report of ``--porcelain``; None if it does not say so."""
    for line in output.decode("utf-8", "replace").splitlines():
        flag, _, rest = line.partition("\t")
        names, _, summary = rest.partition("\t")
        if flag == "!" and names.endswith(f":{ref}"):
            return summary
    return None


def _messages(errors: bytes) -> str:
    """Return the lines that the server itself wrote."""
    lines = errors.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    said = [line.removeprefix(_REMOTE_LINE).strip() for line in lines if line.startswith(_REMOTE_LINE)]
    return "\n".join(line for line in said if line)[:MESSAGES_LIMIT]


def _failed(command: str, done: FinishedProcess, host: str) -> RemoteFailed:
    """Return the error for a git that failed; what it wrote is in the log, where only operators read it."""
    text = done.errors.decode("utf-8", "replace")
    ours = "\n".join(line for line in text.split("\n") if not line.startswith(_REMOTE_LINE))
    git_errors.log_failure(command, ours.strip(), exit_code=done.exit_code)
    return RemoteFailed(classify_failure(ours, host), messages=_messages(done.errors))
