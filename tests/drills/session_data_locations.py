"""All places where data of a session may appear: processes, API responses, pages, tables, files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path

from django.apps import apps
from django.db.models import Model

from tests.drills.deployment import Deployment, Session
from tests.drills.process_groups import descendants

BROWSE = """
from django.contrib.auth.models import User
from django.test import Client
User.objects.filter(username="driller").update(is_superuser=True)
client = Client(headers={"host": "localhost"})
client.force_login(User.objects.get(username="driller"))
for path in PATHS:
    answer = client.get(path)
    print(answer.status_code, path, b"".join(answer).decode() if answer.streaming else answer.content.decode())
"""


def texts_of(session: Session) -> dict[str, str]:
    """Return all readable text of a running deployment, by place."""
    return {
        "arguments": _of_processes(session, "cmdline"),
        "environments": _of_processes(session, "environ"),
        "answers": _responses(session),
        "pages": _pages(session),
        "database": _tables(session.deployment),
    }


def _of_processes(session: Session, name: str) -> str:
    """Return one file in ``/proc`` of all processes: Kandev's, agentctl's and the agent's."""
    server = session.deployment.server
    assert server is not None
    pids = [server.pid, *descendants(server.pid), *(one.pid for one in session.processes())]
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace"))
    return "\n".join(found)


def _responses(session: Session) -> str:
    parts = ["", "status/", "events/?page_size=1000", "messages/", "receipts/", "runs/", "prompts/", "permissions/"]
    paths = [f"{session.path}/{part}" for part in parts]
    paths += ["tasks/", f"tasks/{session.task_id}/", "executors/running/", "agent-profiles/", "sweeps/"]
    return json.dumps([session.deployment.api("GET", path) for path in paths])


def _pages(session: Session) -> str:
    admin = [f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in _models()]
    change = f"/admin/executors_app/executorrunning/{session.execution_id}/change/"
    paths = ["/", f"/{session.path}/", f"/tasks/{session.task_id}/", "/executors/", "/sweeps/", *admin, change]
    done = session.deployment.manage("shell", "-v", "0", "-c", BROWSE.replace("PATHS", repr(paths)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("200 /") >= 6
    return done.stdout + done.stderr


def _models() -> list[type[Model]]:
    return [model for model in apps.get_models() if model.__module__.startswith(("executors_app.", "sessions_app."))]


def _tables(deployment: Deployment) -> str:
    names = [model._meta.db_table for model in apps.get_models()]
    return "\n".join(str(row) for name in names for row in deployment.rows(f'SELECT * FROM "{name}"'))  # noqa: S608


def files(deployment: Deployment, but: Collection[str]) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of the deployment, of its sessions and of the repository, except files named in ``but``."""
    for root in (deployment.data, deployment.repository):
        for path in root.rglob("*"):
            if path.is_file() and path.name not in but:
                yield path, path.read_bytes()
    yield deployment.home / "serve.log", (deployment.home / "serve.log").read_bytes()
