"""A file that waits with its prompt reaches the agent once, whatever is killed."""

from __future__ import annotations

import base64
import json

import pytest

from tests.drills.deployment import Deployment
from tests.drills.session_steps import wait_until_talking
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

MESSAGE_ID = "with-a-file"


def test_queued_file_is_delivered_once_after_everything_was_killed(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("work 60")
    session.wait_for("RUNNING")
    wait_until_talking(session)
    file = {"name": "notes.txt", "content": base64.b64encode(b"pelican").decode()}
    body = {"message_id": MESSAGE_ID, "text": "Read this", "attachments": [file]}
    deployment.api("POST", f"{session.path}/prompt/", body)
    deployment.kill_server()
    session.kill_everything()
    assert MESSAGE_ID not in session.journal(), "the prompt was still queued"

    deployment.serve()

    eventually(
        lambda: {row["message_id"]: row["state"] for row in session.prompts()}[MESSAGE_ID] == "done",
        timeout=180,
        describe="the prompt with the file is answered",
    )
    lines = [json.loads(line) for line in session.journal().splitlines() if f'"{MESSAGE_ID}"' in line]
    kinds = [line["kind"] for line in lines]
    assert (kinds.count("prompt.accepted"), kinds.count("prompt.delivered")) == (1, 1)
    accepted = next(line for line in lines if line["kind"] == "prompt.accepted")
    assert [each["name"] for each in accepted["attachments"]] == ["notes.txt"]
    assert session.agent_log().count("1 file") == 1
