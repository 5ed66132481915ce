"""The id of an agent's conversation is a credential: after a whole life of a session it stands nowhere in clear."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.db.models import Model

from executors_app.agentctl.discretion import fingerprint
from tests.drills.deployment import Deployment, Session
from tests.drills.families import descendants
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

KEPT_BY_AGENTCTL = ("token.json", "memory.jsonl")
"""Where it must keep it, 0600, so that a restart of it does not forget."""
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


def _token(session: Session) -> str:
    path = session.deployment.agentctls / session.execution_id / "token.json"
    return str(json.loads(path.read_text())["resume_token"])


def _turn(session: Session, text: str) -> None:
    before = session.names().count("session.run.completed")
    session.prompt(text)
    eventually(
        lambda: session.names().count("session.run.completed") > before, timeout=60, describe=f"the turn of {text!r}"
    )


def _receipt(session: Session, count: int) -> tuple[str, str]:
    eventually(lambda: len(session.receipts()) >= count, timeout=60, describe=f"receipt {count}")
    last = session.receipts()[-1]
    return str(last["kind"]), str(last["reason"])


def _live(session: Session) -> set[str]:
    """Every kind of life that an id can have; the ids."""
    _turn(session, "remember heron\nwrite kept.txt hello")
    first = _token(session)
    session.kill_everything()
    assert _receipt(session, 2)[0] == "loaded"
    _turn(session, "what was the word?")
    for conversation in session.agent_home.glob("*.jsonl"):
        conversation.unlink()
    session.kill_everything()
    assert _receipt(session, 3) == ("failed", "token_rejected")
    assert fingerprint(first) in session.status()["error_message"]
    session.deployment.api("POST", f"{session.path}/resume/", {"mode": "resume"})
    assert _receipt(session, 4) == ("failed", "token_rejected")
    session.deployment.api("POST", f"{session.path}/resume/", {"mode": "fresh_start"})
    assert _receipt(session, 5)[0] == "fresh"
    _turn(session, "remember stork")
    return {first, _token(session)}


def _command_lines(session: Session) -> str:
    """Arguments and environment of all that runs: ours, agentctl's, the agent's."""
    server = session.deployment.server
    assert server is not None
    pids = [server.pid, *descendants(server.pid), *(one.pid for one in session.processes())]
    found = []
    for pid in pids:
        for name in ("cmdline", "environ"):
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
    return [model for app in ("executors_app", "sessions_app") for model in apps.get_app_config(app).get_models()]


def _tables(deployment: Deployment) -> str:
    names = [model._meta.db_table for model in apps.get_models()]
    return "\n".join(str(row) for name in names for row in deployment.rows(f'SELECT * FROM "{name}"'))  # noqa: S608


def _files(deployment: Deployment) -> Iterator[tuple[Path, bytes]]:
    for root in (deployment.data, deployment.repository):
        for path in root.rglob("*"):
            if path.is_file() and path.name not in KEPT_BY_AGENTCTL:
                yield path, path.read_bytes()
    yield deployment.home / "serve.log", (deployment.home / "serve.log").read_bytes()


def test_after_a_whole_life_the_id_of_a_conversation_stands_nowhere_in_clear(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("hello")
    session.wait_for("WAITING_FOR_INPUT")
    tokens = _live(session)
    assert len(tokens) == 2
    record = deployment.data / "sessions" / f"{session.id}.messages.jsonl"
    eventually(lambda: record.exists() and "stork" in record.read_text(), timeout=30, describe="the portable record")
    told = {
        "command lines": _command_lines(session),
        "answers": _responses(session),
        "pages": _pages(session),
        "database": _tables(deployment),
    }
    deployment.kill_server()
    files = list(_files(deployment))
    assert {"serve.log", record.name} <= {path.name for path, _ in files}
    assert any(path.parent.name == "journal" for path, _ in files)
    for token in tokens:
        forms = (token, urllib.parse.quote(token, safe=""), token.encode().hex())
        assert [place for place, text in told.items() if any(form in text for form in forms)] == []
        assert [path for path, content in files if any(form.encode() in content for form in forms)] == []
        assert fingerprint(token) in told["answers"]
    for name in KEPT_BY_AGENTCTL:
        assert (deployment.agentctls / session.execution_id / name).stat().st_mode & 0o077 == 0
