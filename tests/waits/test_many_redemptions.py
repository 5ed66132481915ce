"""Fifty concurrent redemptions of one key, from several processes on one database: one wins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sessions_app.models import Prompt
from sessions_app.waits import services as waits
from tests.services import ROOT
from tests.supervisor.commands import environment
from tests.supervisor.rows import make_user, names, running_session

PROCESSES, THREADS = 5, 10
Redemption = tuple[str, int, dict[str, Any]]


def redeem_at_once(data_dir: Path, key: str) -> list[Redemption]:
    """Return (idempotency key, status, body) of every redemption."""
    env = environment(data_dir) | {"DJANGO_SETTINGS_MODULE": "kandev.settings", "KANDEV_ALLOWED_HOSTS": "testserver"}
    command = [sys.executable, "-m", "tests.waits.redeemer", key]
    started = [
        subprocess.Popen(
            [*command, str(number), str(THREADS)],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    return [(mine, status, body) for answer in answers for mine, status, body in answer]


@pytest.mark.django_db(transaction=True)
def test_one_of_fifty_concurrent_redemptions_of_a_key_wins(tmp_path: Path) -> None:
    session = running_session()
    opened = waits.open_wait(session.id, "The build", None, make_user())
    key = opened.resume_token or ""

    results = redeem_at_once(tmp_path, key)

    assert len(results) == PROCESSES * THREADS
    [(winner, _, answer)] = [one for one in results if one[1] == 200]
    assert answer == {"run_id": str(opened.run_id), "status": "running"}
    refused = [(status, body["code"]) for _, status, body in results if status != 200]
    assert refused == [(410, "token_consumed")] * (PROCESSES * THREADS - 1)
    when = {body["details"]["consumed_at"] for _, status, body in results if status != 200}
    consumed_at = session.wait_keys.get().consumed_at
    assert consumed_at is not None
    assert when == {consumed_at.isoformat()}
    assert [(row.message_id, row.text) for row in Prompt.objects.all()] == [(f"wait:{opened.wait_id}", winner)]
    assert waits.resume_wait(key, "again", winner) == answer
    event_names = names(session)
    assert [event_names.count(f"session.{one}") for one in ("token.consumed", "run.resumed", "prompt.queued")] == [
        1,
        1,
        1,
    ]
