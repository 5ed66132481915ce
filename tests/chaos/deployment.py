"""A deployment whose processes die, and a client that retries."""

from __future__ import annotations

import json
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import identity
from executors_app.wire import journal_files
from tests.chaos import agent
from tests.chaos.behaviours import Behaviour
from tests.chaos.control_plane import ControlPlane
from tests.drills.deployment import ROOT, ApiError, Deployment
from tests.waiting import WaitTimeout

RETRY_SECONDS: Final = 240.0
"""Seconds during which a client retries: the web may also die once for each of many other sessions."""
START_TIMEOUT: Final = "15"
"""Seconds until a start of an agent that hangs fails."""
_UNAVAILABLE: Final = frozenset({500, 502, 503, 504})


class ChaosDeployment(Deployment):
    """A deployment, its processes, and the sessions that a test created."""

    def __init__(self, home: Path, **settings: str):
        super().__init__(home)
        self.env |= {
            "KANDEV_START_TIMEOUT": START_TIMEOUT,
            "KANDEV_RECONCILE_INTERVAL": "1",
            "KANDEV_MAX_RESTARTS": "3",
            "KANDEV_CONTINUE_AT_RESET": "1",
        }
        self.env |= settings
        self.agent_records = home / "records"
        self.control_plane = ControlPlane(self)
        self.interrupted_sessions: dict[str, str] = {}
        """Sessions whose agentctl or agent was killed, by id, and how."""
        self.errors: Counter[int] = Counter()
        """Number of refusals by status code."""
        self._profiles: dict[tuple[str, ...], str] = {}
        self._checked: set[str] = set()
        self._profile_lock = threading.Lock()

    # --- the API, with retries ---

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request until it is answered; raise ApiError if it is refused, WaitTimeout after RETRY_SECONDS."""
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self.api(method, path, body)
            except ApiError as error:
                self.errors[error.status] += 1
                if error.status not in _UNAVAILABLE:
                    raise
                failure: Exception = error
            except (OSError, ValueError) as error:
                failure = error
            if time.monotonic() > deadline:
                raise WaitTimeout(f"{method} {path} has no answer: {failure}") from failure
            time.sleep(0.1)

    def create_session(
        self, behaviour: Behaviour, text: str, args: tuple[str, ...] = (), **values: Any
    ) -> ChaosSession:
        """Create a session with this agent. If the answer is lost, a second one may exist; it is checked as well."""
        title = {"title": behaviour.name, "team": self.seeded["team"], "repository": self.seeded["repository"]}
        task = self.request("POST", "tasks/", title)
        body = self.tagged(text)
        options = {"agent_profile": self._profile_of(behaviour, args), "executor": self.seeded["executor"], **values}
        created = self.request("POST", f"tasks/{task['id']}/sessions/", {**options, "prompt": body})
        return ChaosSession(self, str(task["id"]), str(created["id"]), behaviour.name)

    @staticmethod
    def tagged(text: str) -> str:
        """Return a text that is unique in the deployment."""
        return f"{text}\n[tag-{uuid.uuid4().hex[:12]}]"

    def _profile_of(self, behaviour: Behaviour, args: tuple[str, ...]) -> str:
        key = (behaviour.name, *args)
        with self._profile_lock:
            if key not in self._profiles:
                command = agent.command(behaviour.name, self.agent_records, *(args or behaviour.args))
                env = {"PYTHONPATH": str(ROOT)}
                body = {"name": behaviour.name, "agent_type": "demo", "command": command, "env": env}
                self._profiles[key] = str(self.request("POST", "agent-profiles/", body)["id"])
            return self._profiles[key]

    # --- sessions ---

    def sessions(self) -> list[ChaosSession]:
        """Return every session of the database."""
        rows = self.rows("SELECT s.id, s.task_id, t.title FROM task_sessions s JOIN tasks t ON t.id = s.task_id")
        return [ChaosSession(self, dashed(row["task_id"]), dashed(row["id"]), row["title"]) for row in rows]

    def unchecked_sessions(self) -> list[ChaosSession]:
        """Return the sessions that have not been checked yet."""
        return [session for session in self.sessions() if session.id not in self._checked]

    def mark_checked(self) -> None:
        """Mark all sessions as checked."""
        self._checked.update(session.id for session in self.sessions())

    def has_swept(self, pid: int | None) -> bool:
        """Return whether the first pass of the supervisor with this pid is over."""
        rows = self.rows("SELECT process FROM supervisors WHERE swept_at IS NOT NULL")
        return pid in [json.loads(row["process"])["pid"] for row in rows]

    def close(self) -> None:
        """End all processes of the deployment."""
        self.control_plane.close()
        super().close()


class ChaosSession:
    """A session as the database, the disk and the processes show it, without API requests."""

    def __init__(self, deployment: ChaosDeployment, task_id: str, session_id: str, behaviour: str):
        self.deployment, self.task_id, self.id, self.behaviour = deployment, task_id, session_id, behaviour
        self.path = f"tasks/{task_id}/sessions/{session_id}"

    def rows(self, table: str, order: str = "id") -> list[dict[str, Any]]:
        """Return its rows of a table."""
        return self.deployment.rows(
            f"SELECT * FROM {table} WHERE session_id = ? ORDER BY {order}",  # noqa: S608
            self.id.replace("-", ""),
        )

    @property
    def row(self) -> dict[str, Any]:
        """Return the session's row."""
        return self.deployment.rows("SELECT * FROM task_sessions WHERE id = ?", self.id.replace("-", ""))[0]

    @property
    def execution_id(self) -> str:
        """Return the id of its execution, with dashes."""
        return dashed(self.row["agent_execution_id"])

    def processes(self) -> list[identity.ProcessIdentity]:
        """Return every process that carries the mark of its execution."""
        return identity.find_marked(self.execution_id)

    @property
    def records_directory(self) -> Path:
        """Return the directory of its agent's records."""
        return self.deployment.agent_records / self.execution_id

    def forked(self) -> list[int]:
        """Return the pids of the children that its agent recorded."""
        record = self.records_directory / "forked.pids"
        return [int(line) for line in record.read_text().split()] if record.exists() else []

    def end_unmarked(self) -> None:
        """End processes that cleared their own environment: without the guard, nothing else can find them."""
        marked = {one.pid for one in self.processes()}
        for pid in self.forked():
            who = identity.identify(pid)
            if who is not None and pid not in marked and runs_for_tests(pid):
                identity.send_signal(who, signal.SIGKILL)

    def journal(self) -> list[Mapping[str, Any]]:
        """Return the remaining lines of its journal."""
        directory = journal_files.journal_directory(self.deployment.data / "agentctl" / self.execution_id)
        try:
            return list(journal_files.read_lines(directory, 0, None))
        except OSError:
            return []


def runs_for_tests(pid: int) -> bool:
    """Return whether a process that a test agent started is alive."""
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return ("sleep" in command_line or "tests.chaos" in command_line) and state not in "ZX"


def dashed(key: str) -> str:
    """Return an id as the API writes it."""
    return str(uuid.UUID(str(key)))
