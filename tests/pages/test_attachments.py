"""Files of prompts on the page: uploaded with the form, listed while they wait, shown in the conversation."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from sessions_app.models import Prompt
from tests.pages.world import World, hear, make_world, path_of

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
        hear(session, {"kind": "prompt.accepted", "message_id": "m-1"})
    image = client.get(url, headers={"Accept": "image/avif,image/webp,image/*,*/*;q=0.8"})
    assert (image.content, image["Content-Type"]) == (PNG, "image/png")


def test_script_is_told_why_a_file_is_refused(world: World, client: Client) -> None:
    session = world.running_session()
    answer = send(client, session, ("a.bin", b"\0\xff"), accept="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "unsupported_media_type")
    assert not Prompt.objects.filter(message_id="m-1").exists()
