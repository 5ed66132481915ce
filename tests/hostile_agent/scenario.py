"""The environment of a hostile session, and checks that nothing outside the session was read, changed or run."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from executors_app.machine.process.spawning import AGENTCTL_UID
from executors_app.repositories import workspace_store
from executors_app.repositories.git import LOOKUP
from executors_app.runtimes import Runtime, SupportsPush
from executors_app.runtimes.containers.sites import HOME_PATH
from executors_app.wire.executions import Launched, LaunchSpec
from tests.executors.harness import RuntimeHarness, client_of, row_of, seen, spec_for
from tests.executors.repositories import commit, run_git
from tests.repositories.attacks import Trap

SECRET = "canary-of-the-host-0f6d2c"
OTHER_SECRET = "canary-of-another-session-91ab77"
PLANTED = b"planted\n"
"""The content that the control plane writes into files of the workspace."""
STATE = "/var/lib/agentctl/state"
SANDBOX_TRAP = Trap(Path(HOME_PATH) / "trap")
"""The same trap inside the sandbox, where it may run, but only as the agent."""


class PushingRuntime(Runtime, SupportsPush, Protocol):
    """A runtime that receives the work of its sessions."""


class SandboxHarness(RuntimeHarness, Protocol):
    """A runtime whose sandboxes can be looked into."""

    @property
    def runtime(self) -> PushingRuntime:
        """Return the runtime."""
        ...

    @property
    def user(self) -> str:
        """Return whom agents are there, as ``uid:gid``."""
        ...

    def run(self, spec: LaunchSpec, *argv: str) -> tuple[int, str]:
        """Run a command in the sandbox as its agent would; return exit code and output."""
        ...

    def directory_of(self, owner_id: str) -> Path:
        """Return where this machine has a session's workspace."""
        ...


class AttackScenario:
    """A host with secrets, a team's repository, and another session besides the hostile one."""

    def __init__(self, harness: SandboxHarness, root: Path, data: Path):
        self.harness, self.root, self.data = harness, root, data
        self.trap = Trap(root / "trap").set_up()
        self.trap.script.write_text(
            f"#!/bin/sh\n{{ echo \"$0 $*\"; tr '\\0' ' ' < /proc/$PPID/cmdline; }} >> '{self.trap.canary}'\ncat\n"
        )
        self.host = self.trap.outside
        run_git(self.host, "init", "--quiet")
        self.secret_commit = commit(self.host, "secret", f"{SECRET}\n")
        self.other_launch: tuple[LaunchSpec, Launched] | None = None
        self.secrets = {SECRET, OTHER_SECRET}
        """The secrets that must not leak; tests add the tokens of agentctl."""
        self.outputs: list[str] = []
        """Everything that the control plane could show to users."""
        self._before: dict[str, str] = {}

    async def prepare(self) -> None:
        """Start another session with stored work, and record the checksums of what must not change."""
        self.data.mkdir(exist_ok=True)
        (self.data / "secret_key").write_text(f"{SECRET}\n")
        spec = spec_for(self.harness)
        launched = await self.harness.runtime.launch(spec)
        (seen(self.harness, launched) / "theirs").write_text(f"{OTHER_SECRET}\n")
        await client_of(spec, launched).snapshot()
        await self.harness.runtime.push_work(row_of(self.harness, spec, launched))
        self.harness.kill(spec)
        self.other_launch = (spec, launched)
        self._before = self.protected_checksums()

    def reset_baseline(self) -> None:
        """Record the checksums again, after changes that the test itself made."""
        self._before = self.protected_checksums()

    @property
    def other_session(self) -> str:
        """Return the id of the other session."""
        assert self.other_launch
        return self.other_launch[0].session_id

    def protected_checksums(self) -> dict[str, str]:
        """Return the checksums of everything outside the hostile session."""
        assert self.other_launch
        other_archive = workspace_store.workspace_archive(self.other_session).path
        folders = [self.host, other_archive, self.harness.directory_of(self.other_session), self.data / "secret_key"]
        if self.harness.runtime.name == "local_docker":
            folders += [self.data / "agentctl" / self.other_launch[0].execution_id]
            folders += [self.data / "agent_homes" / self.other_session]
        checksums = {str(path): _checksum(path) for folder in folders for path in _below(folder)}
        common = self.harness.repository / ".git"
        for path in _below(self.harness.repository):
            parts = path.relative_to(self.harness.repository).parts
            if parts[:2] not in {(".git", "refs"), (".git", "objects")} and parts[:2] != (".git", "packed-refs"):
                checksums[str(path)] = _checksum(path)
        return checksums | {f"ref {line}": "" for line in run_git(common, "show-ref").splitlines()}

    def check_isolation(self, spec: LaunchSpec, launched: Launched, *others: tuple[LaunchSpec, Launched]) -> None:
        """Assert that the session changed, ran and read nothing outside itself; ``others`` are as hostile as it is."""
        assert not self.trap.canary.exists(), f"a command ran on the host: {self.trap.canary.read_text()}"
        after = self.protected_checksums()
        names = {*self._before, *after}
        for each in ((spec, launched), *others):
            names = {name for name in names if not self._is_own(name, *each)}
        touched = [name for name in sorted(names) if self._before.get(name) != after.get(name)]
        assert not touched, f"files outside the session changed: {touched}"
        self._check_agent_files(spec)
        for output in self.outputs:
            assert not [secret for secret in self.secrets if secret in output], output[:2000]
        if self.harness.runtime.name == "local_docker":
            state = self.data / "agentctl" / spec.execution_id
            written = [path for path in _below(state) if path.is_file() and path.read_bytes() == PLANTED]
            assert not written, f"the agent made the control plane write {written}"
        self._check_archive(spec)

    def _is_own(self, name: str, spec: LaunchSpec, launched: Launched) -> bool:
        own = {launched.worktree_branch, *(f"refs/kandev/{kind}/{spec.session_id}" for kind in ("recovery", "turns"))}
        kept = f"refs/kandev/kept/{spec.session_id}/"
        return name.startswith("ref ") and (any(name.endswith(one) for one in own) or kept in name)

    def _check_agent_files(self, spec: LaunchSpec) -> None:
        for path in _below(self.harness.directory_of(spec.session_id)):
            self._check_file(path)
        for path in _below(self.home_of(spec)):
            self._check_file(path)
            if path.name == "canary":
                ran = path.read_text()
                assert str(AGENTCTL_UID) not in ran, f"a command ran as agentctl's user: {ran}"

    def _check_file(self, path: Path) -> None:
        if stat.S_ISREG(path.lstat().st_mode):
            text = path.read_bytes()
            assert not [secret for secret in self.secrets if secret.encode() in text], path

    def _check_archive(self, spec: LaunchSpec) -> None:
        archive = workspace_store.workspace_archive(spec.session_id)
        if archive.exists():
            words = ("cat-file", "--batch-all-objects", "--batch", "--buffer")
            listed = archive.git.run(*words, bounds=replace(LOOKUP, output=1 << 30))
            assert SECRET.encode() not in listed
            assert OTHER_SECRET.encode() not in listed
            assert all(spec.session_id in ref or ref.startswith("refs/heads/kandev/") for ref in archive.tips())

    def home_of(self, spec: LaunchSpec) -> Path:
        """Return the agent's home directory on this machine."""
        if self.harness.runtime.name == "local_docker":
            return self.data / "agent_homes" / spec.session_id
        located: Any = self.harness
        home: Path = located.home_of(spec.session_id)
        return home

    def record_output(self, output: Any) -> None:
        """Record output that a user could see."""
        self.outputs.append(str(output))


def _below(path: Path) -> Iterator[Path]:
    """Yield the path and everything below it, without following links."""
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
