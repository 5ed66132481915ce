"""Files of prompts on the page: uploaded with the form, listed while they wait, shown in the conversation."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from sessions_app.board.views import board
from sessions_app.kernel.services.errors import ExecutorDisabled
from sessions_app.models import Prompt, Task, TaskSession
from tests.pages.world import World, ingest_lines, make_world, path_of

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def client(world: World) -> Client:
    browser = Client()
    browser.force_login(world.ada)
    return browser


def send(client: Client, session: Any, *files: tuple[str, bytes], **headers: str) -> Any:
    uploads = [SimpleUploadedFile(name, content) for name, content in files]
    form = {"message_id": "m-1", "text": "Look", "files": uploads}
    return client.post(f"{path_of(session)}prompt/", form, headers=headers)


def test_uploaded_files_wait_with_their_prompt_and_enter_the_conversation(world: World, client: Client) -> None:
    session = world.running_session()
    assert send(client, session, ("a.png", PNG), ("<b>.txt", b"hello")).status_code == 302
    row = Prompt.objects.get(message_id="m-1")
    assert [each["name"] for each in row.attachments] == ["a.png", "<b>.txt"]
    url = f"/api/v1{path_of(session)}attachments/{row.attachments[0]['sha256']}/"
    for _ in range(2):
        page = client.get(path_of(session)).content.decode()
        assert f'<img src="{url}" alt="" loading="lazy">' in page
        assert "&lt;b&gt;.txt" in page
        Prompt.objects.filter(id=row.pk, state="queued").update(state="sending")
        ingest_lines(session, {"kind": "prompt.accepted", "message_id": "m-1"})
    image = client.get(url, headers={"Accept": "image/avif,image/webp,image/*,*/*;q=0.8"})
    assert (image.content, image["Content-Type"]) == (PNG, "image/png")


def test_script_is_told_why_a_file_is_refused(world: World, client: Client) -> None:
    session = world.running_session()
    answer = send(client, session, ("a.bin", b"\0\xff"), accept="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "unsupported_media_type")
    assert not Prompt.objects.filter(message_id="m-1").exists()


def test_forms_for_new_tasks_and_sessions_take_files(world: World, client: Client) -> None:
    session = world.running_session()
    chosen = {"agent_profile": session.agent_profile_id, "executor": session.executor_id}
    upload = SimpleUploadedFile("notes.txt", b"pelican")
    form = {**chosen, "prompt": "Look", "attachments": [upload, SimpleUploadedFile("a.png", PNG)]}
    assert client.post(f"/tasks/{session.task_id}/", form).status_code == 302
    row = Prompt.objects.get(text="Look")
    assert [each["name"] for each in row.attachments] == ["notes.txt", "a.png"]
    form = {**chosen, "title": "New", "description": "Read it", "repository": session.task.repository_id}
    assert client.post("/", {**form, "attachments": SimpleUploadedFile("b.txt", b"x")}).status_code == 302
    assert [each["name"] for each in Prompt.objects.get(text="Read it").attachments] == ["b.txt"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"description": " "}, "Files need a prompt that explains what to do with them."),
        ({"description": "Read it", "only": "1"}, "Files are sent with the first prompt"),
    ],
)
def test_new_task_whose_files_would_be_lost_is_not_created(
    world: World, client: Client, values: dict[str, str], why: str
) -> None:
    row = world.task()
    chosen = {"agent_profile": world.profile.pk, "executor": world.executor.pk, "repository": row.repository_id}
    file = SimpleUploadedFile("b.txt", b"x")
    answer = client.post("/", {**chosen, **values, "title": "New", "attachments": file})
    assert (answer.status_code, Task.objects.filter(title="New").count()) == (422, 0)
    assert why in answer.content.decode()


def test_new_task_whose_session_is_refused_is_not_created(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ExecutorDisabled

    monkeypatch.setattr(board, "create_session", refuse)
    row = world.task()
    chosen = {"agent_profile": world.profile.pk, "executor": world.executor.pk, "repository": row.repository_id}
    answer = client.post("/", {**chosen, "title": "New", "description": "Read it"})
    page = answer.content.decode()
    assert (answer.status_code, Task.objects.filter(title="New").count()) == (422, 0)
    assert ExecutorDisabled().message in page
    assert 'id="new-task" open' in page
    assert "Read it</textarea>" in page


def test_form_says_why_a_file_cannot_be_sent(world: World, client: Client) -> None:
    session = world.running_session()
    chosen = {"agent_profile": session.agent_profile_id, "executor": session.executor_id, "prompt": "Look"}
    form = {**chosen, "attachments": SimpleUploadedFile("a.bin", b"\0\xff")}
    answer = client.post(f"/tasks/{session.task_id}/", form)
    assert answer.status_code == 422
    assert "“a.bin” cannot be sent." in answer.content.decode()
    assert not Prompt.objects.filter(text="Look").exists()


@pytest.mark.parametrize(
    ("taken", "text"),
    [([], "This agent accepts text files only."), (["image"], "This agent accepts images and text files."), (None, "")],
)
def test_page_says_before_sending_which_files_the_agent_takes(
    world: World, client: Client, taken: list[str] | None, text: str
) -> None:
    session = world.running_session()
    TaskSession.objects.filter(id=session.id).update(metadata={"prompt_blocks": taken} if taken is not None else {})
    page = client.get(path_of(session)).content.decode()
    assert text in page
    assert ("This agent accepts" in page) is bool(text)
