"""What the host keeps of each instance: one small file in its state directory, written before anything is started."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.durable_files import replace_file
from executors_app.agentctl.places import local_launch
from executors_app.agentctl.places.disk import Disk
from executors_app.domain import ExecutionFacts, Launched

logger = logging.getLogger(__name__)

_FILE: Final = "instance.json"
_FORGOTTEN: Final = "instance.forgotten.json"
_IDENTITY: Final = "host.json"


@dataclass(frozen=True, slots=True)
class Record:
    """One instance; its token is beside it, in the file that agentctl reads."""

    execution_id: str
    session_id: str
    task_id: str
    deployment: str
    """Whose it is: several control planes may use one host."""
    repository: str
    """Path of the repository here."""
    base_branch: str = ""
    worktree_path: str = ""
    worktree_branch: str = ""
    """Both empty until the worktree was made."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """``{"process": ...}`` once agentctl was up."""

    def launched(self, launched: Launched) -> Record:
        """With what a launch has made."""
        return replace(
            self,
            worktree_path=launched.worktree_path,
            worktree_branch=launched.worktree_branch,
            state=dict(launched.state),
        )


class Records:
    """All instances of one root directory; the files are the truth, nothing is kept in memory."""

    def __init__(self, disk: Disk):
        self._disk = disk

    def find(self, execution_id: str) -> Record | None:
        """The record of an instance; None where there is none, or none that can be read."""
        return _read(self._disk.places_of(execution_id).path / _FILE)

    def all(self) -> list[Record]:
        """Every instance that was not forgotten, alive or not."""
        directories = (self._disk.root / "agentctl").glob(f"*/{_FILE}")
        return [
            record
            for path in sorted(directories)
            if (record := _read(path)) and record.execution_id == path.parent.name
        ]

    def keep(self, record: Record) -> None:
        """Write a record, on the disk before this returns; raises OSError."""
        places = self._disk.places_of(record.execution_id)
        places.make()
        replace_file(places.path / _FILE, orjson.dumps(asdict(record)))

    def forget(self, execution_id: str) -> None:
        """Take an instance from the list; its worktree and journal stay."""
        path = self._disk.places_of(execution_id).path / _FILE
        path.rename(path.with_name(_FORGOTTEN))

    def token_of(self, execution_id: str) -> str:
        """What the instance wants as bearer; empty where none was written."""
        try:
            return self._disk.places_of(execution_id).token_file.read_text()
        except OSError:
            return ""

    def facts_of(self, record: Record) -> ExecutionFacts:
        """The record as a row of a control plane on this machine would be."""
        ready = local_launch.read_ready(self._disk.places_of(record.execution_id))
        return ExecutionFacts(
            id=record.execution_id,
            session_id=record.session_id,
            task_id=record.task_id,
            runtime="",
            host_id="",
            agentctl_url=ready.url if ready else "",
            auth_token=self.token_of(record.execution_id),
            status="",
            generation=0,
            pid=ready.pid if ready else None,
            repository_path=record.repository,
            base_branch=record.base_branch,
            worktree_path=record.worktree_path,
            worktree_branch=record.worktree_branch,
            state=record.state,
        )


def digest_of(token: str) -> str:
    """By which a token is told without being shown."""
    return hashlib.sha256(token.encode()).hexdigest()


def host_id_of(root: Path) -> str:
    """Who this host is, drawn once for its root directory."""
    path = root / _IDENTITY
    try:
        found = orjson.loads(path.read_bytes())["id"]
    except FileNotFoundError:
        found = uuid.uuid4().hex
        replace_file(path, orjson.dumps({"id": found}))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return str(found)


def _read(path: Path) -> Record | None:
    try:
        return Record(**orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        logger.error("%s cannot be read: %s", path, error)
        return None
