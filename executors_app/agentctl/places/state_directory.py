"""The places of one execution's agentctl, all of which follow from the execution id (rule 4)."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.errors import LaunchFailed

_LOCK_WITHIN: Final = 60.0
_POLL: Final = 0.01


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """``<data>/agentctl/<execution id>/``; nobody but its owner can look inside."""

    path: Path

    @property
    def socket(self) -> Path:
        """Where agentctl listens."""
        return self.path / "agentctl.sock"

    @property
    def token_file(self) -> Path:
        """What agentctl wants as bearer."""
        return self.path / "token"

    @property
    def ready_file(self) -> Path:
        """``{"url", "pid", "boot_id", "started_at"}``, there once agentctl listens."""
        return self.path / "ready.json"

    @property
    def lock_file(self) -> Path:
        """Held by agentctl as long as it lives."""
        return self.path / "lock"

    @property
    def resume_token_file(self) -> Path:
        """What agentctl keeps of its agent's conversation: ``{"resume_token", "last_message_uuid"}``."""
        return self.path / "token.json"

    @property
    def log_file(self) -> Path:
        """Standard output and error of agentctl."""
        return self.path / "agentctl.log"

    @property
    def seed_file(self) -> Path:
        """What the workspace is made from, ``seed.Seed``."""
        return self.path / "seed"

    def make(self) -> None:
        """Make the directory and close it to others."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)

    @contextmanager
    def one_start(self) -> Iterator[None]:
        """Let one start of this execution go on at a time; LaunchFailed if another one does not end in a minute."""
        lock = os.open(self.path / "launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_WITHIN
            while not _is_locked(lock):
                if time.monotonic() > deadline:
                    raise LaunchFailed("Another start of this session's agentctl does not end.")
                time.sleep(_POLL)
            yield
        finally:
            os.close(lock)

    def token(self) -> str:
        """The token of the last launch; empty where there was none. Raises OSError."""
        try:
            return self.token_file.read_text()
        except FileNotFoundError:
            return ""

    def write_token(self, token: str) -> None:
        """Write the token, 0600, so that a reader finds it whole or not at all."""
        draft = self.token_file.with_name(f".token.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.token_file)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def state_directory(data_directory: Path, execution_id: str) -> StateDirectory:
    """Where the agentctl of an execution keeps its things."""
    return StateDirectory(data_directory / "agentctl" / execution_id)
