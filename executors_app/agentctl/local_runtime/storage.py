"""What executions keep on the disk of their machine.

State directories, bearer tokens of launches, worktrees and journals; every path follows from an id.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.journal import line_format
from executors_app.agentctl.workspace import worktrees
from executors_app.agentctl.workspace.seed import Seed, write_seed
from executors_app.agentctl.workspace.worktrees import CommitLookup, OwnedRepository, Worktree
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.errors import LaunchFailed, RepositoryUnusable

LAUNCH_KEY: Final = "launch"
"""Where the nonce stands in ``ExecutionFacts.state``."""
_TOKEN: Final = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{64}")
_MIN_SECRET_LENGTH: Final = 16


def mint_launch_token(secret: str) -> str:
    """A token for a process that is about to be started."""
    if len(secret) < _MIN_SECRET_LENGTH:
        return secret  # nothing good can follow from it: agentctl refuses it, and says so
    return derive_launch_token(secret, secrets.token_hex(16))


def derive_launch_token(secret: str, launch: str) -> str:
    """The token of the launch with this nonce; an empty nonce stands for the secret itself."""
    if not launch:
        return secret
    return f"{launch}.{hmac.new(secret.encode(), launch.encode(), hashlib.sha256).hexdigest()}"


def launch_nonce(token: str) -> str:
    """The nonce in a token; empty where it has none."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_token_of(token: str, secret: str) -> bool:
    """Whether a token is the secret itself, or follows from it."""
    follows = derive_launch_token(secret, launch_nonce(token))
    return bool(token) and any(hmac.compare_digest(token.encode(), one.encode()) for one in (secret, follows))


def token_state(token: str) -> dict[str, str]:
    """What the row's ``state`` has to know of it."""
    launch = launch_nonce(token)
    return {LAUNCH_KEY: launch} if launch else {}


def bearer_token(secret: str, state: Mapping[str, Any]) -> str:
    """What the agentctl that a row knows takes as bearer."""
    launch = state.get(LAUNCH_KEY)
    return derive_launch_token(secret, launch if isinstance(launch, str) else "")


_LOCK_TIMEOUT: Final = 60.0
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
    def start_lock(self) -> Iterator[None]:
        """Let one start of this execution go on at a time; LaunchFailed if another one does not end in a minute."""
        lock = os.open(self.path / "launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_TIMEOUT
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


@dataclass(frozen=True, slots=True)
class ExecutionStorage:
    """One data directory; every place in it follows from an id (rule 4)."""

    root: Path
    open_repository: Callable[[Path], CommitLookup] = OwnedRepository.open
    """How git is asked about the repository of a worktree; the control plane heeds none of its configuration."""

    def places_of(self, execution_id: str) -> StateDirectory:
        """The state directory of an execution."""
        return state_directory(self.root, execution_id)

    def worktree_of(self, session_id: str, path: str, branch: str) -> Worktree:
        """As the row has it; what it lacks follows from the session's id."""
        place = worktrees.session_worktree(self.root, session_id)
        return Worktree(Path(path) if path else place.path, branch or place.branch)

    def write_seed(self, spec: LaunchSpec) -> Worktree:
        """Write what agentctl makes the launch's worktree from; blocks. Raises RepositoryUnusable, OSError.

        agentctl makes it, or finds it, because git runs what the repository's configuration names.
        """
        if not spec.repository_path:
            raise RepositoryUnusable("The task names no repository.")
        worktree = self.worktree_of(spec.worktree_owner, spec.worktree_path, spec.worktree_branch)
        existed = bool(spec.worktree_path)
        places = self.places_of(spec.execution_id)
        places.make()
        seed = Seed(worktree.branch, repository=spec.repository_path, base=spec.base_branch, existed=existed)
        write_seed(seed, places.seed_file)
        return worktree

    def workspace_state(self, one: ExecutionFacts) -> tuple[WorkspaceState, str]:
        """Whether the worktree can be had, and the precise reason if it cannot; blocks, changes nothing."""
        if not one.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        worktree = self.worktree_of(one.worktree_owner, one.worktree_path, one.worktree_branch)
        if not one.repository_path and not worktree.path.exists():
            return WorkspaceState.GONE, f"The worktree {worktree.path} was deleted, and its repository is not known."
        try:
            return worktrees.worktree_state(worktree, lambda: self.open_repository(Path(one.repository_path)))
        except RepositoryUnusable:
            # no answer is no proof of a loss: the launch will say what is wrong
            return WorkspaceState.REBUILDABLE, ""

    def is_known(self, one: ExecutionFacts) -> bool:
        """Whether the execution's state directory, with a token of its own in it, is here."""
        return self.token_of(one) is not None

    def token_of(self, one: ExecutionFacts) -> str | None:
        """The token of the last launch here; None where there is none that follows from the execution's secret."""
        try:
            token = self.places_of(one.id).token()
        except OSError:
            return None
        return token if is_token_of(token, one.auth_token) else None

    def resume_token(self, execution_id: str) -> str | None:
        """The agent's conversation id, from what agentctl has kept in its state directory."""
        try:
            kept = orjson.loads(self.places_of(execution_id).resume_token_file.read_bytes())
        except (OSError, ValueError):
            return None
        token = kept.get("resume_token") if isinstance(kept, dict) else None
        return token if isinstance(token, str) and token else None

    def unread_journal(self, execution_id: str, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """The journal behind a cursor; lines of earlier epochs first, each names its own."""
        directory = line_format.journal_directory(self.places_of(execution_id).path)
        try:
            return list(line_format.read_lines(directory, after, epoch or None))
        except OSError:
            return []
