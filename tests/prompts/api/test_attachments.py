"""Prompts with files: checked by content, stored once with the prompt, and served only to the team."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.kernel.services.errors import AttachmentMissing
from sessions_app.models import Attachment, Prompt, TaskSession, session_transaction
from sessions_app.prompts import services as prompts
from sessions_app.prompts.rules.attachments import MAX_FILE_BYTES, MAX_FILES
from sessions_app.prompts.services import remember_blocks
from tests.api.world import World, client_of

pytestmark = pytest.mark.any_database

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def file(name: str, content: bytes, **more: str) -> dict[str, str]:
    return {"name": name, "content": base64.b64encode(content).decode(), **more}


def send(api: APIClient, world: World, *files: dict[str, str], message_id: str = "m-1", text: str = "Look") -> Any:
    request = {"message_id": message_id, "text": text, "attachments": list(files)}
    return api.post(world.url("prompt/"), request, format="json")


def set_accepted_blocks(world: World, *blocks: str) -> None:
    """Record which content blocks the session's agent accepts in a prompt."""
    with session_transaction(world.session.id) as transaction:
        remember_blocks(transaction, {"prompt": list(blocks)})


def test_files_are_stored_with_their_prompt_and_listed(world: World, api: APIClient) -> None:
    assert send(api, world, file("a.png", PNG), file("notes.md", "# Größe\n".encode())).status_code == 202
    (listed,) = api.get(world.url("prompts/")).json()["results"]
    assert listed["attachments"] == [
        {"name": "a.png", "media_type": "image/png", "size": len(PNG), "sha256": hashlib.sha256(PNG).hexdigest()},
        {
            "name": "notes.md",
            "media_type": "text/plain",
            "size": 10,
            "sha256": hashlib.sha256("# Größe\n".encode()).hexdigest(),
        },
    ]


def test_repeated_request_stores_nothing_twice_and_another_file_conflicts(world: World, api: APIClient) -> None:
    assert send(api, world, file("a.png", PNG)).status_code == 202
    assert send(api, world, file("a.png", PNG)).status_code == 200
    assert send(api, world, file("a.png", PNG), message_id="m-2").status_code == 202
    assert (Prompt.objects.count(), Attachment.objects.count()) == (2, 1)
    answer = send(api, world, file("a.txt", b"other"))
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("attached", "status", "code"),
    [
        (file("run.exe", b"MZ\x90\0\xff"), 415, "unsupported_media_type"),
        (file("photo.png", b"no picture", media_type="image/png"), 415, "unsupported_media_type"),
        (file("photo.heic", b"\0\0\0\x18ftypheic\0\0\xff"), 415, "unsupported_media_type"),
        (file("empty.txt", b""), 400, "validation_error"),
        (file("big.txt", b"a" * (MAX_FILE_BYTES + 1)), 413, "too_large"),
        ({"name": "a.txt", "content": "no base64!"}, 400, "validation_error"),
        ({"name": "a.txt", "content": "YQ==", "path": "/etc/passwd"}, 400, "validation_error"),
    ],
)
def test_unusable_file_is_refused_with_the_whole_prompt(
    world: World, api: APIClient, attached: dict[str, str], status: int, code: str
) -> None:
    answer = send(api, world, file("good.txt", b"good"), attached)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Prompt.objects.exists()
    assert not Attachment.objects.exists()


def test_number_and_total_size_of_files_are_limited(world: World, api: APIClient) -> None:
    many = [file(f"{number}.txt", b"a") for number in range(MAX_FILES + 1)]
    assert send(api, world, *many).json()["code"] == "validation_error"
    half = b"a" * (4 * 1024 * 1024)
    answer = send(api, world, file("1.txt", half), file("2.txt", half))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_agent_without_image_support_gets_no_images(world: World, api: APIClient) -> None:
    set_accepted_blocks(world)
    answer = send(api, world, file("a.png", PNG))
    assert (answer.status_code, answer.json()["code"]) == (409, "attachment_unsupported")
    assert "a.png" in answer.json()["message"]
    assert send(api, world, file("a.txt", b"text")).status_code == 202


@pytest.mark.parametrize("known", [("image",), None], ids=["takes images", "does not say"])
def test_image_is_accepted_for_an_agent_that_may_take_it(
    world: World, api: APIClient, known: tuple[str, ...] | None
) -> None:
    if known:
        set_accepted_blocks(world, *known)
    assert send(api, world, file("a.png", PNG)).status_code == 202


def test_content_is_served_only_to_the_team_and_never_runs(world: World, api: APIClient) -> None:
    page = b"<script>alert(1)</script>"
    send(api, world, file("a.png", PNG), file("a.html", page))
    image, text = (api.get(world.url(f"attachments/{hashlib.sha256(one).hexdigest()}/")) for one in (PNG, page))
    assert (image.content, image["Content-Type"], image["Content-Disposition"]) == (PNG, "image/png", "inline")
    assert (text.content, text["Content-Type"]) == (page, "application/octet-stream")
    assert text["Content-Disposition"] == "attachment"
    for answer in (image, text):
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
    url = world.url(f"attachments/{hashlib.sha256(PNG).hexdigest()}/")
    assert client_of(world.stranger).get(url).status_code == 404


def test_name_that_no_database_can_look_for_is_not_found(world: World, api: APIClient) -> None:
    assert api.get(world.url("attachments/a%00b/")).status_code == 404


def test_prompt_is_resent_with_its_files_or_not_at_all(world: World, api: APIClient) -> None:
    send(api, world, file("a.png", PNG))
    Prompt.objects.update(state="held")
    again = prompts.resend_prompt(world.session.id, "m-1", world.member)
    assert again.attachments == Prompt.objects.get(message_id="m-1").attachments
    Prompt.objects.filter(id=again.pk).update(state="held")
    Attachment.objects.all().delete()
    with pytest.raises(AttachmentMissing):
        prompts.resend_prompt(world.session.id, again.message_id, world.member)


def test_files_are_deleted_with_their_session(world: World, api: APIClient) -> None:
    send(api, world, file("a.png", PNG))
    TaskSession.objects.filter(id=world.session.id).delete()
    assert not Attachment.objects.exists()


def start_session(api: APIClient, world: World, *files: dict[str, str], **more: Any) -> Any:
    request = {"agent_profile": str(world.profile.id), "executor": str(world.executor.id), "prompt": "Look"}
    body = {**request, "attachments": list(files), **more}
    return api.post(f"/api/v1/tasks/{world.task.id}/sessions/", body, format="json")


def test_new_session_has_the_files_of_its_first_prompt(world: World, api: APIClient) -> None:
    key = {"idempotency_key": "k-1"}
    answers = [start_session(api, world, file("a.png", PNG), **key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200], answers[0].content
    row = Prompt.objects.get(session=answers[0].json()["id"])
    assert [(each["name"], each["media_type"]) for each in row.attachments] == [("a.png", "image/png")]
    assert bytes(Attachment.objects.get(session=row.session).content) == PNG
    other = start_session(api, world, file("b.png", PNG), **key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("files", "more", "status", "code"),
    [
        ([file("a.bin", b"\0\xff")], {}, 415, "unsupported_media_type"),
        ([file("a.txt", b"x" * (MAX_FILE_BYTES + 1))], {}, 413, "too_large"),
        ([file("a.txt", b"x")], {"prompt": " "}, 400, "validation_error"),
    ],
)
def test_new_session_with_an_unusable_file_is_not_created(
    world: World, api: APIClient, files: list[dict[str, str]], more: dict[str, str], status: int, code: str
) -> None:
    before = TaskSession.objects.count()
    answer = start_session(api, world, *files, **more)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert TaskSession.objects.count() == before
