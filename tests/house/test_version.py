"""The version has one source, and every place that shows it agrees with it."""

from __future__ import annotations

import re
import tomllib
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command, get_commands, load_command_class
from django.test import Client

from executors_app import __version__
from sessions_app.management.output import VisibleCommand
from tests.services import ROOT


@pytest.fixture
def ada(client: Client) -> Client:
    client.force_login(User.objects.create_user("ada"))
    return client


def test_version_of_the_package_is_read_from_the_code() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["dynamic"] == ["version"]
    assert declared["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "executors_app.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


@pytest.mark.parametrize("dockerfile", ["deploy/Dockerfile", "deploy/Dockerfile.agentctl"])
def test_image_is_labelled_with_the_version(dockerfile: str) -> None:
    last_stage = (ROOT / dockerfile).read_text().rpartition("\nFROM ")[2]
    assert f'org.opencontainers.image.version="{__version__}"' in last_stage


def test_command_prints_the_version() -> None:
    printed = StringIO()
    call_command("kandev_version", stdout=printed)
    assert printed.getvalue() == f"{__version__}\n"


def test_every_command_of_ours_names_the_version() -> None:
    ours = [name for name, app in get_commands().items() if app == "sessions_app"]
    commands = [load_command_class("sessions_app", name) for name in ours]
    named = [command.get_version() for command in commands if isinstance(command, VisibleCommand)]
    assert named and set(named) == {__version__}


@pytest.mark.django_db
def test_api_and_its_schema_name_the_version(ada: Client) -> None:
    assert ada.get("/api/v1/version/").json() == {"version": __version__}
    assert ada.get("/api/v1/schema/?format=json").json()["info"]["version"] == __version__


@pytest.mark.django_db
def test_version_is_shown_to_users_only(client: Client) -> None:
    assert client.get("/api/v1/version/").status_code == 401
    client.force_login(User.objects.create_user("ada"))
    assert f"Kandev {__version__}" in client.get("/help/").text


@pytest.mark.django_db
def test_metrics_name_the_version(client: Client) -> None:
    cache.clear()
    assert f'kandev_build_info{{version="{__version__}"}} 1.0' in client.get("/metrics").text
