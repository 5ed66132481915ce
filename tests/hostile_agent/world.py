"""What surrounds a hostile session, and the proof that nothing of it was read, changed or run."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executors_app import workspace_store
from executors_app.agentctl.process.spawning import AGENTCTL_UID
from executors_app.containers.sites import HOME_PATH
from executors_app.domain import Launched, LaunchSpec
from tests.docker.harness import DockerHarness
from tests.executors.harness import client_of, row_of, seen, spec_for
from tests.executors.repositories import commit, run_git
from tests.repositories.attacks import Trap

SECRET = "canary-of-the-host-0f6d2c"
OTHERS = "canary-of-another-session-91ab77"
PLANTED = b"planted\n"
"""What the control plane writes into files of the workspace."""
STATE = "/var/lib/agentctl/state"
INSIDE = Trap(Path(HOME_PATH) / "trap")
"""The same trap in the sandbox: there it may run, but only as the agent."""


class World:
    """A host with secrets, the repository of a team, and a session beside the hostile one."""

    def __init__(self, harness: DockerHarness, root: Path, data: Path):
        self.harness, self.root, self.data = harness, root, data
        self.trap = Trap(root / "trap").lay()
        self.trap.script.write_text(
            f"#!/bin/sh\n{{ echo \"$0 $*\"; tr '\\0' ' ' < /proc/$PPID/cmdline; }} >> '{self.trap.canary}'\ncat\n"
        )
        self.host = self.trap.outside
        run_git(self.host, "init", "--quiet")
        self.secret_commit = commit(self.host, "secret", f"{SECRET}\n")
        self.other: tuple[LaunchSpec, Launched] | None = None
        self.secrets = {SECRET, OTHERS}
        """And the tokens of agentctl."""
        self.answers: list[str] = []
        """All that the control plane could show to people."""
        self._before: dict[str, str] = {}

    async def begin(self) -> None:
        """Let another session have work, and write down what must stay."""
        self.data.mkdir(exist_ok=True)
        (self.data / "secret_key").write_text(f"{SECRET}\n")
        spec = spec_for(self.harness)
        launched = await self.harness.runtime.launch(spec)
        (seen(self.harness, launched) / "theirs").write_text(f"{OTHERS}\n")
        await client_of(spec, launched).snapshot()
        await self.harness.runtime.push_work(row_of(self.harness, spec, launched))
        self.harness.kill(spec)
        self.other = (spec, launched)
        self._before = self.protected()

    def begin_again(self) -> None:
        """What was changed until now was the test's own doing."""
        self._before = self.protected()

    @property
    def other_session(self) -> str:
        """The id of the session beside."""
        assert self.other
        return self.other[0].session_id

    def protected(self) -> dict[str, str]:
        """Checksums of everything but what is the hostile session's own."""
        assert self.other
        theirs = workspace_store.workspace_archive(self.other_session).path
        folders = [self.host, theirs, self.harness.directory_of(self.other_session), self.data / "secret_key"]
        if self.harness.runtime.name == "local_docker":
            folders += [self.data / "agentctl" / self.other[0].execution_id]
            folders += [self.data / "agent_homes" / self.other_session]
        found = {str(path): _checksum(path) for folder in folders for path in _below(folder)}
        common = self.harness.repository / ".git"
        for path in _below(self.harness.repository):
            parts = path.relative_to(self.harness.repository).parts
            if parts[:2] not in {(".git", "refs"), (".git", "objects")} and parts[:2] != (".git", "packed-refs"):
                found[str(path)] = _checksum(path)
        return found | {f"ref {line}": "" for line in run_git(common, "show-ref").splitlines()}

    def inspect(self, spec: LaunchSpec, launched: Launched) -> None:
        """Fail where anything beside the session changed, ran, or became known to it."""
        assert not self.trap.canary.exists(), f"a command ran on the host: {self.trap.canary.read_text()}"
        own = {launched.worktree_branch, f"refs/kandev/recovery/{spec.session_id}"}
        after = self.protected()
        names = sorted(name for name in {*self._before, *after} if not self._is_own(name, spec, own))
        touched = [name for name in names if self._before.get(name) != after.get(name)]
        assert not touched, f"something beside the session was touched: {touched}"
        self._inspect_what_the_agent_has(spec)
        for answer in self.answers:
            assert not [secret for secret in self.secrets if secret in answer], answer[:2000]
        if self.harness.runtime.name == "local_docker":
            state = self.data / "agentctl" / spec.execution_id
            written = [path for path in _below(state) if path.is_file() and path.read_bytes() == PLANTED]
            assert not written, f"the agent had {written} written"
        self._inspect_archive(spec)

    def _is_own(self, name: str, spec: LaunchSpec, own: set[str]) -> bool:
        if f"/.git/worktrees/{spec.session_id}" in name:  # of an earlier release
            return True
        kept = f"refs/kandev/kept/{spec.session_id}/"
        return name.startswith("ref ") and (any(name.endswith(one) for one in own) or kept in name)

    def _inspect_what_the_agent_has(self, spec: LaunchSpec) -> None:
        for path in _below(self.harness.directory_of(spec.session_id)):
            self._inspect_text(path)
        for path in _below(self.home_of(spec)):
            self._inspect_text(path)
            if path.name == "canary":
                ran = path.read_text()
                assert str(AGENTCTL_UID) not in ran, f"a command ran with agentctl's rights: {ran}"

    def _inspect_text(self, path: Path) -> None:
        if stat.S_ISREG(path.lstat().st_mode):
            text = path.read_bytes()
            assert not [secret for secret in self.secrets if secret.encode() in text], path

    def _inspect_archive(self, spec: LaunchSpec) -> None:
        archive = workspace_store.workspace_archive(spec.session_id)
        if archive.exists():
            listed = archive.git.run("cat-file", "--batch-all-objects", "--batch", "--buffer", limit=1 << 30)
            assert SECRET.encode() not in listed
            assert OTHERS.encode() not in listed
            assert all(spec.session_id in ref or ref.startswith("refs/heads/kandev/") for ref in archive.tips())

    def home_of(self, spec: LaunchSpec) -> Path:
        """The agent's home, as this machine sees it."""
        if self.harness.runtime.name == "local_docker":
            return self.data / "agent_homes" / spec.session_id
        volume: Any = getattr(self.harness.engine, "volume")  # noqa: B009 - the remote engine's
        found: Path = volume(f"kandev-home-{spec.session_id}")
        return found

    def say(self, answer: Any) -> None:
        """Note what somebody was told."""
        self.answers.append(str(answer))


def _below(path: Path) -> Iterator[Path]:
    """The path and all below it; links are not followed."""
    if not os.path.lexists(path):
        return
    yield path
    if stat.S_ISDIR(path.lstat().st_mode):
        for folder, folders, files in os.walk(path):
            for name in [*folders, *files]:
                yield Path(folder) / name


def _checksum(path: Path) -> str:
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        return f"-> {path.readlink()}"
    if stat.S_ISREG(about.st_mode):
        return f"{about.st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return f"{about.st_mode:o}"
