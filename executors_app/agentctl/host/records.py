"""The records of a host's instances on its disk, and the host's own id."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.state_files import replace_file
from executors_app.machine import launch
from executors_app.machine.storage import ExecutionStorage
from executors_app.wire.executions import ExecutionFacts, Launched
from executors_app.wire.exhaustion import raise_if_exhausted

logger = logging.getLogger(__name__)

_FILE: Final = "instance.json"
_FORGOTTEN: Final = "instance.forgotten.json"
_IDENTITY: Final = "host.json"


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One instance. Its token is in its own file, which agentctl reads."""

    execution_id: str
    session_id: str
    task_id: str
    deployment: str
    """The control plane that owns it: several may share a host."""
    repository: str
    """Path of the repository on this host."""
    base_branch: str = ""
    worktree_path: str = ""
    worktree_branch: str = ""
    """Path and branch, empty until the worktree was created."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """``{"process": ...}`` once agentctl has started."""

    def launched(self, launched: Launched) -> InstanceRecord:
        """Return the record with the result of a launch."""
        return replace(
            self,
            worktree_path=launched.worktree_path,
            worktree_branch=launched.worktree_branch,
            state=dict(launched.state),
        )


class InstanceRecords:
    """The records of all instances below one root directory, read from disk on every call."""

    def __init__(self, disk: ExecutionStorage):
        self._disk = disk

    def find(self, execution_id: str) -> InstanceRecord | None:
        """Return the record of an instance; None if there is none or it cannot be read."""
        return _read_json(self._disk.state_directory_of(execution_id).path / _FILE)

    def all(self) -> list[InstanceRecord]:
        """Return all instances that were not forgotten, running or not."""
        records = []
        for path in sorted((self._disk.root / "agentctl").glob(f"*/{_FILE}")):
            record = _read_json(path)
            if record and record.execution_id == path.parent.name:
                records.append(record)
        return records

    def keep(self, record: InstanceRecord) -> None:
        """Write a record, on disk before this returns; raises OSError."""
        directory = self._disk.state_directory_of(record.execution_id)
        directory.create()
        replace_file(directory.path / _FILE, orjson.dumps(asdict(record)))

    def forget(self, execution_id: str) -> None:
        """Remove an instance from the list; its worktree and journal stay."""
        path = self._disk.state_directory_of(execution_id).path / _FILE
        path.rename(path.with_name(_FORGOTTEN))

    def token_of(self, execution_id: str) -> str:
        """Return the bearer token of an instance; empty if none was written."""
        try:
            return self._disk.state_directory_of(execution_id).token_file.read_text()
        except OSError as error:
            raise_if_exhausted(error)
            return ""

    def facts_of(self, record: InstanceRecord) -> ExecutionFacts:
        """Return the record in the shape of a control plane's execution row."""
        ready = launch.read_ready_file(self._disk.state_directory_of(record.execution_id))
        url, pid = "", None
        if ready:
            url, pid = ready.url, ready.pid
        return ExecutionFacts(
            id=record.execution_id,
            session_id=record.session_id,
            task_id=record.task_id,
            runtime="",
            host_id="",
            agentctl_url=url,
            auth_token=self.token_of(record.execution_id),
            status="",
            generation=0,
            pid=pid,
            repository_path=record.repository,
            base_branch=record.base_branch,
            worktree_path=record.worktree_path,
            worktree_branch=record.worktree_branch,
            state=record.state,
        )


def token_digest(token: str) -> str:
    """Return a digest that identifies a token without revealing it."""
    return hashlib.sha256(token.encode()).hexdigest()


def load_host_id(root: Path) -> str:
    """Return the id of this host, generated once per root directory."""
    path = root / _IDENTITY
    try:
        found = orjson.loads(path.read_bytes())["id"]
    except FileNotFoundError:
        found = uuid.uuid4().hex
        replace_file(path, orjson.dumps({"id": found}))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return str(found)


def _read_json(path: Path) -> InstanceRecord | None:
    try:
        return InstanceRecord(**orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise_if_exhausted(error)
        logger.error("%s cannot be read: %s", path, error)
        return None
