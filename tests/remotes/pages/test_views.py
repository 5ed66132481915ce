"""The settings page of a repository's remote, without JavaScript and in a browser."""

from __future__ import annotations

import pytest
from django.test import Client

from sessions_app.models import RepositoryRemote
from tests.pages.world import World

pytestmark = pytest.mark.django_db(transaction=True)

SSH = "git@example.org:team/project.git"
TOKEN = "tok-7d1f0a6b2c9e"


def test_member_sees_the_remote_and_changes_nothing(ada: Client, world: World) -> None:
    path = f"/settings/repositories/{world.repository.pk}/remote/"
    assert "Nothing is recorded" in ada.get(path).text
    RepositoryRemote.objects.create(repository=world.repository, address=SSH, public_key="ssh-ed25519 AAAA kandev")
    page = ada.get(path).text
    assert SSH in page
    assert "<form" not in page[page.index("<h2>Remote</h2>") :]
    assert ada.post(path, {"action": "delete"}).status_code == 403


def test_wrong_values_are_explained_and_secrets_not_repeated(staff: Client, world: World) -> None:
    path = f"/settings/repositories/{world.repository.pk}/remote/"
    answer = staff.post(path, {"action": "address", "address": "/srv/project"})
    assert (answer.status_code, "Enter an address like" in answer.text) == (422, True)
    staff.post(path, {"action": "address", "address": "https://example.org/project.git"})
    answer = staff.post(path, {"action": "token", "username": "x" * 300, "token": TOKEN})
    assert (answer.status_code, TOKEN in answer.text) == (422, False)
    assert staff.post(path, {"action": "token", "token": TOKEN}).status_code == 302
    assert TOKEN not in staff.get(path).text
    staff.post(path, {"action": "address", "address": SSH})
    answer = staff.post(path, {"action": "key", "private_key": "-----BEGIN s3cr3t"})
    assert (answer.status_code, "OpenSSH" in answer.text) == (422, True)
    assert staff.post(path, {"action": "other"}).status_code == 400
    assert staff.post(path, {"action": "confirm", "fingerprint": "SHA256:x"}, follow=True).text.count("other keys") == 1
    assert staff.post(path, {"action": "delete"}).status_code == 302
    assert not RepositoryRemote.objects.exists()
