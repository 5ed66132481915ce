"""A complete Kandev in its own directory: real processes that a drill starts, kills and starts again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from executors_app.agentctl.process.guard_process import command_line_of
from executors_app.machine.process import identity
from kandev.databases import EMBEDDED_NAME
from tests import databases, preloaded
from tests.drills.chatty_agent import messages_from_events
from tests.drills.process_groups import descendants, members, process_group
from tests.environment import DATABASE_URL
from tests.executors.repositories import make_repository
from tests.migrated_database import copy_migrated
from tests.preloaded import PreloadedProcess
from tests.waiting import PATIENCE, eventually, settled

ROOT = Path(__file__).resolve().parents[2]
MANAGE = ROOT / "manage.py"
SEED = """
import json
from django.contrib.auth.models import Group, User
from rest_framework.authtoken.models import Token
from executors_app.models import AgentProfile, Executor
from sessions_app.models import Repository
team = Group.objects.create(name="Drill team")
user = User.objects.create_user("driller", is_staff=True)
user.groups.add(team)
repository = Repository.objects.create(name="drill", team=team, path="/to/be/replaced")
executor = Executor.objects.create(name="here", runtime="local_standalone")
print(json.dumps({
    "token": Token.objects.create(user=user).key, "team": team.id,
    "repository": str(repository.id), "executor": str(executor.id), "user": user.id,
}))
"""
ADD_EXECUTOR = """
import json
from executors_app.models import Executor
executor = Executor(name={name!r}, runtime={runtime!r}, config=json.loads({config!r}))
executor.full_clean()
executor.save()
print(executor.id)
"""

TURN_ENDS = frozenset(f"session.run.{end}" for end in ("completed", "cancelled", "failed", "interrupted"))
"""The events that end a turn."""


@cache
def _create_once(server: str) -> Deployment:
    """Return the deployment that others copy, one for each database ``server``."""
    made = Deployment(Path(tempfile.mkdtemp(prefix="template-", dir=os.environ["KANDEV_DATA_DIR"])))
    made.env |= databases.new_database(server)
    made.data.mkdir(mode=0o700)
    copy_migrated(made.database)
    made.seeded = json.loads(made.run_script(SEED))
    return made


class ApiError(Exception):
    """The API refused a request; ``status`` and ``body`` say how."""

    def __init__(self, status: int, body: Any):
        super().__init__(f"{status}: {body}")
        self.status, self.body = status, body


class Deployment:
    """Paths, commands and the running processes of one Kandev."""

    def __init__(self, home: Path):
        self.home = home
        self.data = home / "data"
        self.repository = home / "repository"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "KANDEV_DATA_DIR": str(self.data),
            "KANDEV_LEASE_TTL": "6",
            "KANDEV_RECONCILE_INTERVAL": "2",
            **databases.new_database(),
        }
        self.code = ROOT
        """The source tree that it runs: this one, or an older one."""
        self.seeded: dict[str, Any] = {}
        self.url = ""
        self.urls: list[str] = []
        """The URLs of its webs, if there are several."""
        self.port = 0
        """The port to serve on; 0 takes a free one each time."""
        self.server: PreloadedProcess | None = None

    @property
    def agentctls(self) -> Path:
        """Return the directory with the state directories of its sessions."""
        return self.data / "agentctl"

    @property
    def database(self) -> str | Path:
        """Return the URL of a PostgreSQL database, or the file of an SQLite database."""
        return self.env.get(DATABASE_URL) or self.data / EMBEDDED_NAME

    # --- commands ---

    def manage(
        self, *args: str, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run one management command to its end."""
        command = [str(self.code / MANAGE.name), *args]
        return preloaded.run(command, env=self.env | dict(env or {}), cwd=self.code, timeout=timeout)

    def recover(self, *args: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run ``recover_sessions --wait --json``, which must succeed; return its document."""
        done = self.manage("recover_sessions", "--wait", "60", "--json", *args, env=env)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def prepare(self) -> None:
        """Copy a prepared data directory and database with a team, a user, a repository and an executor."""
        made = _create_once(databases.server_of(self.database))
        shutil.copytree(made.data, self.data, ignore=shutil.ignore_patterns(f"{EMBEDDED_NAME}*"))
        databases.copy(made.database, self.database)
        self.seeded = dict(made.seeded)
        make_repository(self.repository, "README.md", "# Drill\n")
        self.change("UPDATE repositories SET path = ?", str(self.repository))

    def make(self) -> None:
        """Create everything that a prepared deployment contains, with the migrations of its own code."""
        self.data.mkdir(mode=0o700)
        migrated = self.manage("migrate", "-v", "0", "--skip-checks")
        assert migrated.returncode == 0, migrated.stderr
        self.seeded = json.loads(self.run_script(SEED))

    def run_script(self, script: str) -> str:
        """Run Python in ``manage.py shell``, which must succeed; return the last line that it prints."""
        done = self.manage("shell", "-v", "0", "-c", script)
        assert done.returncode == 0, done.stderr
        return (done.stdout.strip().splitlines() or [""])[-1]

    def add_executor(self, name: str, runtime: str, config: Mapping[str, Any] = {}) -> str:
        """Add an executor; return its id."""
        return self.run_script(ADD_EXECUTOR.format(name=name, runtime=runtime, config=json.dumps(config)))

    def serve(self, env: Mapping[str, str] | None = None) -> None:
        """Start web, supervisor and worker, and wait until they report that they are ready."""
        log = (self.home / "serve.log").open("ab")
        self.server = PreloadedProcess(
            [str(self.code / MANAGE.name), "serve", "--port", str(self.port)],
            env=self.env | dict(env or {}),
            cwd=self.code,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        assert self.server.stdout is not None
        line = self.server.stdout.readline().decode()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, f"serve printed {line!r}: {self.log()[-2000:]}"
        self.url = found[0]
        eventually(self.is_ready, timeout=60, describe=f"/readyz answers 200: {self.log()[-1500:]}")

    def is_ready(self) -> bool:
        """Return whether ``/readyz`` answers 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def log(self) -> str:
        """Return what the server wrote to stderr."""
        return (self.home / "serve.log").read_text(errors="replace")

    def kill_server(self, number: int = signal.SIGKILL) -> None:
        """End web, supervisor and worker at once; SIGTERM is sent only to the parent."""
        assert self.server is not None
        groups = {process_group(pid) for pid in (self.server.pid, *descendants(self.server.pid))} - {0}
        if number == signal.SIGKILL:
            for group in groups:  # kill a whole group at once, so that nothing can be forked in between
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
        else:
            self.server.send_signal(number)
        self.server.wait(timeout=60)
        assert self.server.stdout is not None
        self.server.stdout.close()
        self.server = None
        eventually(lambda: not members(groups), describe="the server has ended")

    # --- the API ---

    def api(self, method: str, path: str, body: Any = None, *, at: str = "") -> Any:
        """Send a request, to the web process ``at`` if there are several; raise ApiError unless it succeeds.

        A refusal because SQLite is busy changes nothing, so the request is repeated, as every client should do.
        """

        answer: Any = None

        def is_answered() -> bool:
            nonlocal answer
            try:
                answer = self._api_once(method, path, body, at)
            except ApiError as error:
                if error.status == 503 and "database_busy" in error.body:
                    return False
                raise
            return True

        eventually(is_answered, timeout=60, describe=f"the database is free for {method} {path}")
        return answer

    def _api_once(self, method: str, path: str, body: Any, at: str) -> Any:
        request = urllib.request.Request(
            f"{at or self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Token {self.seeded['token']}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode(errors="replace")) from error
        return json.loads(text) if text else None

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> Session:
        """Create a task and a session with its own agent profile, and start it in the background."""
        seeded, agent_home = self.seeded, Path(tempfile.mkdtemp(prefix="agent-", dir=self.home))
        task = self.api(
            "POST", "tasks/", {"title": "Drill", "team": seeded["team"], "repository": seeded["repository"]}
        )
        body = {
            "agent_profile": self._profile(agent_home, dict(profile or {})),
            "executor": seeded["executor"],
            "prompt": prompt,
            **values,
        }
        made = self.api("POST", f"tasks/{task['id']}/sessions/", body)
        return Session(self, str(task["id"]), str(made["id"]), agent_home)

    def _profile(self, agent_home: Path, values: dict[str, Any]) -> str:
        env = {"KANDEV_DEMO_AGENT_HOME": str(agent_home), **values.pop("env", {})}
        body = {"name": "drill", "agent_type": "demo", "env": env, **values}
        return str(self.api("POST", "agent-profiles/", body)["id"])

    # --- the database, read directly ---

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Read rows from the database; ids are 32 digits and JSON is text on every database."""
        return databases.rows_of(self.database, sql, values)

    def change(self, sql: str, *values: Any) -> None:
        """Change one row of the database directly."""
        assert databases.change(self.database, sql, *values) == 1

    def story(self) -> str:
        """Return the server's log, then rows and events of every session, for a drill that failed."""
        parts = [self.log()[-6000:]] if (self.home / "serve.log").exists() else []
        for table in ("task_sessions", "executors_running", "session_intents", "session_prompts", "supervisors"):
            parts += [f"{table}: {row}" for row in self.rows(f"SELECT * FROM {table}")]  # noqa: S608
        parts += [str(row) for row in self.rows("SELECT session_id, seq, name, payload, at FROM session_events")]
        return "\n".join(parts)

    # --- the end ---

    def close(self) -> None:
        """End everything that was started here and check that it ended."""
        try:
            if self.server is not None:
                self.kill_server()
        finally:
            # Until it executes agentctl, a process that the server was just starting looks like the server.
            assert settled(self._end_executions) == 0, "processes of an execution cannot be ended"

    def _end_executions(self) -> int:
        """End the processes of all executions; return how many were found."""
        found = [one for execution in self.agentctls.glob("*") for one in identity.find_marked(execution.name)]
        identity.kill_all(found, 10)
        return len(found)


class Session:
    """One session of a deployment."""

    def __init__(self, deployment: Deployment, task_id: str, session_id: str, agent_home: Path):
        self.deployment, self.task_id, self.id, self.agent_home = deployment, task_id, session_id, agent_home

    @property
    def path(self) -> str:
        """Return the path of the session in the API."""
        return f"tasks/{self.task_id}/sessions/{self.id}"

    def status(self) -> dict[str, Any]:
        """Return the answer to ``GET status/``."""
        answer: dict[str, Any] = self.deployment.api("GET", f"{self.path}/status/")
        return answer

    def wait_for(self, state: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until the session is in ``state``; return its status.

        A session whose agent has just started waits for input too, with its first prompt still in the queue: that is
        not the rest after a turn for which callers wait.
        """

        def reached() -> dict[str, Any] | None:
            status = self.status()
            is_before_turn = state == "WAITING_FOR_INPUT" and status["queued_prompts"] > 0
            return status if status["state"] == state and not is_before_turn else None

        try:
            found = eventually(reached, timeout=timeout, describe=f"the session's state is {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status()}\n{self.deployment.log()[-3000:]}") from None
        assert found is not None
        return found

    def turn_ends(self) -> list[str]:
        """Return the name of the event that ended each turn, oldest first."""
        return [name for name in self.names() if name in TURN_ENDS]

    def wait_for_turn(self, before: int, timeout: float) -> str | None:
        """Wait until a turn has ended after ``before`` others; return its event, or None if a person has to choose.

        They have to if the conversation is lost. A session that Kandev has given up fails at once, with the reason.
        """

        def is_over() -> bool:
            if len(self.turn_ends()) > before:
                return True
            status = self.status()
            rests = not status["starting"]
            assert status["state"] != "FAILED" or not rests, status["error_message"]
            return rests and status["error_code"] == "token_rejected" and status["queued_prompts"] == 1

        try:
            eventually(is_over, timeout=timeout, describe="a turn has ended, or a person has to choose")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status()}\n{self.log()[-3000:]}") from None
        return next(iter(self.turn_ends()[before:]), None)

    def log(self) -> str:
        """Return the lines of the server's log that name the session."""
        return "\n".join(line for line in self.deployment.log().splitlines() if self.id in line)

    def prompt(self, text: str) -> None:
        """Send ``POST prompt/``."""
        self.deployment.api("POST", f"{self.path}/prompt/", {"message_id": os.urandom(8).hex(), "text": text})

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        """Read rows by the id of the session."""
        return self.deployment.rows(sql, self.id.replace("-", ""))

    @property
    def row(self) -> dict[str, Any]:
        """Return the session's row."""
        return self._rows("SELECT * FROM task_sessions WHERE id = ?")[0]

    @property
    def execution(self) -> dict[str, Any]:
        """Return the session's ``executors_running`` row."""
        return self._rows("SELECT * FROM executors_running WHERE session_id = ?")[0]

    @property
    def execution_id(self) -> str:
        """Return the id of its execution, with dashes."""
        raw = self.execution["id"]
        return f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"

    def events(self) -> list[dict[str, Any]]:
        """Return the whole log in order, checking that it has no gap."""
        rows = self._rows("SELECT seq, name, payload FROM session_events WHERE session_id = ? ORDER BY seq")
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        return [{**row, "payload": json.loads(row["payload"])} for row in rows]

    def names(self) -> list[str]:
        """Return the names of the log's events."""
        return [event["name"] for event in self.events()]

    def agent_text(self) -> str:
        """Return all that the agent said, according to the log."""
        return agent_text(self.events())

    def receipts(self) -> list[dict[str, Any]]:
        """Return its continuity receipts, oldest first."""
        rows = self._rows("SELECT * FROM continuity_receipts WHERE session_id = ? ORDER BY created_at")
        return [{**row, "evidence": json.loads(row["evidence"])} for row in rows]

    def prompts(self) -> list[dict[str, Any]]:
        """Return its prompts, oldest first."""
        return self._rows("SELECT * FROM session_prompts WHERE session_id = ? ORDER BY id")

    def processes(self) -> list[identity.ProcessIdentity]:
        """Return every process of the execution: agentctl, guard, agent and what they started."""
        return identity.find_marked(self.execution_id)

    def lasting_pids(self) -> set[int]:
        """Return the pids of agentctl, guard and agent, without short-lived ones such as git."""

        def read() -> set[int]:
            commands = ((one.pid, command_line_of(one.pid)) for one in self.processes())
            return {pid for pid, command in commands if command and not command.startswith("git ")}

        return settled(read)  # a process that is just being started still has its parent's command line

    def kill_everything(self) -> None:
        """Kill agentctl, guard and agent at once, as a power failure does: none sees another one die."""
        found = self.processes()
        assert found, "no process of the session runs"
        for one in found:
            identity.send_signal(one, signal.SIGSTOP)
        identity.kill_all(found, 10)
        eventually(lambda: not self.processes(), describe="no process of the session runs")

    def journal(self) -> str:
        """Return the text of the journal on disk."""
        directory = self.deployment.agentctls / self.execution_id / "journal"
        return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.jsonl")))

    def agent_log(self) -> str:
        """Return the agent's own log of what it said."""
        return "".join(path.read_text() for path in sorted(self.agent_home.glob("*.said")))


def agent_text(events: Iterable[Mapping[str, Any]]) -> str:
    """Return all that the agent said, from the events of a log."""
    messages = messages_from_events((event["name"], event["payload"]) for event in events)
    return "".join(what for kind, what in messages if kind == "text")
