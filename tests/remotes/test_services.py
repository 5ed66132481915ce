"""Remotes of repositories: what is recorded, what is forgotten, and what nobody ever reads again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from executors_app.repositories.remote_keys import generate_key
from sessions_app.kernel.services.errors import Conflict, Invalid, NotFound, ReadOnly
from sessions_app.models import RepositoryRemote
from sessions_app.remotes import services
from tests.api.world import World, client_of
from tests.repositories.remote_servers import GitSshServer, make_hosted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

HTTPS, SSH = "https://example.org/team/project.git", "git@example.org:team/project.git"
TOKEN = "tok-7d1f0a6b2c9e"


def test_deploy_key_logs_in_once_its_host_is_confirmed(
    world: World, staff: User, ssh: GitSshServer, tmp_path: Path, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings.KANDEV_DATA_DIR = str(tmp_path / "data")
    hosted = make_hosted(tmp_path / "project.git")
    remote = services.set_address(world.repository, ssh.address(hosted).text, staff)
    remote = services.store_key(remote, ssh.key.read_text(), staff)
    assert services.check_connection(remote, staff).test_code == "remote_host_key_unknown"
    remote = services.fetch_host_keys(remote, staff)
    shown = [key.fingerprint for key in remote.scanned_keys]
    assert not remote.is_ready
    with pytest.raises(Conflict, match="other keys"):
        services.confirm_host_keys(remote, ["SHA256:other"], staff)
    with pytest.raises(Conflict, match="other keys"):
        services.confirm_host_keys(remote, [], staff)
    remote = services.confirm_host_keys(remote, shown, staff)
    assert remote.is_ready
    remote = services.check_connection(remote, staff)
    assert (remote.test_code, remote.tested_at is None) == ("", False)
    old = remote.public_key
    remote = services.make_key(remote, staff)
    assert remote.public_key != old
    assert remote.tested_at is None
    assert services.check_connection(remote, staff).test_code == "remote_denied"
    # The server has another key now: nothing is sent to it, and fetching alone trusts nothing.
    other = generate_key().public.rsplit(" ", 1)[0]
    RepositoryRemote.objects.update(host_keys=other)
    remote = services.fetch_host_keys(services.require_remote(world.repository), staff)
    assert services.check_connection(remote, staff).test_code == "remote_host_key_changed"
    for secret in (ssh.key.read_text(), remote.private_key):
        assert secret.splitlines()[3] not in caplog.text


def test_key_and_token_are_encrypted_in_the_database(world: World, staff: User) -> None:
    remote = services.make_key(services.set_address(world.repository, SSH, staff), staff)
    private = remote.private_key
    remote = services.store_token(services.set_address(world.repository, HTTPS, staff), "deploy", TOKEN, staff)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM repository_remotes")
        stored = repr(cursor.fetchall())
    assert TOKEN not in stored
    assert private not in stored
    assert RepositoryRemote.objects.get().token == TOKEN
    assert TOKEN not in repr(remote.connection())


def test_another_server_gets_neither_key_nor_token(world: World, staff: User) -> None:
    remote = services.store_token(services.set_address(world.repository, HTTPS, staff), "deploy", TOKEN, staff)
    assert services.set_address(world.repository, HTTPS.replace("project", "other"), staff).has_token
    for address in ("https://example.com/team/project.git", SSH):
        services.store_token(services.set_address(world.repository, HTTPS, staff), "deploy", TOKEN, staff)
        remote = services.set_address(world.repository, address, staff)
        assert (remote.has_token, remote.username, remote.public_key, remote.host_keys) == (False, "", "", "")
    # What was begun for the address before changes nothing.
    with pytest.raises(NotFound):
        services.make_key(RepositoryRemote(id=remote.id, address="ssh://git@example.org/x"), staff)


def test_forgotten_credential_is_not_left_in_a_file_of_a_killed_process(
    world: World, staff: User, tmp_path: Path, settings: Any
) -> None:
    settings.KANDEV_DATA_DIR = str(tmp_path / "data")
    remote = services.make_key(services.set_address(world.repository, SSH, staff), staff)
    remote.directory.mkdir(parents=True)
    key = remote.directory / "key"
    key.write_text(remote.private_key)
    services.set_address(world.repository, SSH.replace("project", "other"), staff)
    assert key.exists(), "the same server still gets it"
    remote = services.set_address(world.repository, HTTPS, staff)
    assert not key.exists()
    (remote.directory / "credential").write_text(TOKEN)
    services.delete_remote(remote, staff)
    assert not (remote.directory / "credential").exists()


def test_only_staff_change_where_branches_go(world: World) -> None:
    with pytest.raises(ReadOnly):
        services.set_address(world.repository, HTTPS, world.member)
    remote = RepositoryRemote.objects.create(repository=world.repository, address=SSH)
    calls = (services.make_key, services.fetch_host_keys, services.check_connection, services.delete_remote)
    for call in calls:
        with pytest.raises(ReadOnly):
            call(remote, world.member)


def test_what_does_not_fit_is_refused_with_its_field(world: World, staff: User) -> None:
    with pytest.raises(Invalid, match="like"):
        services.set_address(world.repository, "file:///srv/x", staff)
    remote = services.set_address(world.repository, SSH, staff)
    with pytest.raises(Conflict, match="deploy key"):
        services.store_token(remote, "", TOKEN, staff)
    with pytest.raises(Invalid, match="OpenSSH"):
        services.store_key(remote, "no key", staff)
    remote = services.set_address(world.repository, HTTPS, staff)
    with pytest.raises(Conflict, match="token"):
        services.make_key(remote, staff)
    for token in ("", " ", "a\nb", "x" * 5000):
        with pytest.raises(Invalid, match="one line"):
            services.store_token(remote, "", token, staff)


def test_api_never_returns_a_secret(world: World, staff: User) -> None:
    url, client = f"/api/v1/repositories/{world.repository.pk}/remote/", client_of(staff)
    assert client.get(url).status_code == 404
    answers = [
        client.put(url, {"address": SSH}, format="json"),
        client.put(f"{url}key/", {}, format="json"),
        client.put(url, {"address": HTTPS}, format="json"),
        client.put(f"{url}token/", {"token": TOKEN}, format="json"),
        client_of(world.member).get(url),
    ]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert answers[1].json()["public_key"].startswith("ssh-ed25519 ")
    assert answers[-1].json()["has_token"] is answers[-1].json()["ready"] is True
    assert all(TOKEN not in answer.text and "PRIVATE" not in answer.text for answer in answers)
    assert client_of(world.stranger).get(url).status_code == 404
    assert client.delete(url).status_code == 204
    assert not RepositoryRemote.objects.exists()
