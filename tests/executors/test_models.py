"""Profiles, executors and execution rows refuse invalid values and reveal no secrets."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ValidationError
from django.db import connection

from executors_app import models, plugins
from executors_app.apps import check_data_directory, check_isolation, check_plugins
from executors_app.models import AgentProfile, Executor
from tests.executors.rows import make_execution

pytestmark = pytest.mark.django_db


def test_execution_shows_no_secret() -> None:
    execution = make_execution(auth_token="bearer-secret", resume_token="token-secret")
    facts = execution.facts("/repository", "main")
    assert "secret" not in f"{execution} {execution!r} {facts}"
    assert (facts.auth_token, facts.id, facts.repository_path) == ("bearer-secret", str(execution.pk), "/repository")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"agent_type": "no-such-agent"}, "agent_type"),
        ({"command": "rm -rf"}, "command"),
        ({"args": [1]}, "args"),
        ({"permission_mode": "always"}, "permission_mode"),
    ],
)
def test_invalid_profile_is_refused_at_the_field(fields: dict[str, Any], wrong: str) -> None:
    profile = AgentProfile(**{"name": "p", "agent_type": "demo"} | fields)
    with pytest.raises(ValidationError) as caught:
        profile.full_clean()
    assert list(caught.value.message_dict) == [wrong]


@pytest.mark.parametrize(
    ("fields", "wrong"), [({"runtime": "moon"}, "runtime"), ({"config": {"image": "x"}}, "config")]
)
def test_invalid_executor_is_refused_at_the_field(fields: dict[str, Any], wrong: str) -> None:
    executor = Executor(**{"name": "e", "runtime": "local_standalone"} | fields)
    with pytest.raises(ValidationError) as caught:
        executor.full_clean()
    assert list(caught.value.message_dict) == [wrong]


def test_unknown_plugin_error_lists_the_available_ones() -> None:
    with pytest.raises(plugins.UnknownPlugin, match=r"'moon'. Available: .*local_standalone"):
        plugins.runtime("moon")
    with pytest.raises(plugins.UnknownPlugin, match="demo"):
        plugins.agent_type("hal")


def test_every_plugin_is_found_under_its_own_name() -> None:
    assert {name: one.name for name, one in plugins.runtimes().items()}["local_standalone"] == "local_standalone"
    assert {"demo", "custom_acp"} <= set(plugins.agent_types())


def test_deploy_check_names_executors_without_isolation() -> None:
    assert check_isolation(None) == []
    Executor.objects.create(name="On this machine", runtime="local_standalone")
    (warning,) = check_isolation(None)
    assert "On this machine" in warning.msg


def test_relative_data_directory_is_an_error(settings: Any) -> None:
    settings.KANDEV_DATA_DIR = "data"
    assert [found.id for found in check_data_directory(None)] == ["executors.E001"]


def test_checks_are_registered_and_find_nothing_here() -> None:
    assert check_plugins(None) == []
    assert [found for found in run_checks(tags=["executors"]) if found.is_serious()] == []


def test_replaced_secrets_are_remembered_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_FORMER_SECRETS", 3)
    servers = [{"name": "tools", "headers": [{"name": "Authorization", "value": "Bearer one"}], "env": {"A": "two"}}]
    profile = AgentProfile.objects.create(name="demo", agent_type="demo", env={"KEY": "0"}, mcp_servers=servers)
    profile = AgentProfile.objects.get(pk=profile.pk)
    profile.mcp_servers = []
    profile.save()
    assert {pair["value"] for pair in AgentProfile.objects.get(pk=profile.pk).former_secrets} == {"Bearer one", "two"}
    for number in range(1, 4):
        profile = AgentProfile.objects.get(pk=profile.pk)
        profile.env = {"KEY": str(number)}
        profile.save(update_fields=["env"])
    profile = AgentProfile.objects.get(pk=profile.pk)
    assert [pair["value"] for pair in profile.former_secrets] == ["2", "1", "0"]
    profile.name = "renamed"
    profile.save()
    assert [pair["value"] for pair in AgentProfile.objects.get(pk=profile.pk).former_secrets] == ["2", "1", "0"]


def test_profile_whose_secrets_cannot_be_read_can_be_saved() -> None:
    profile = AgentProfile.objects.create(name="demo", agent_type="demo", env={"KEY": "secret"})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agent_profiles SET env = 'damaged'")
    profile.env = {"KEY": "another"}
    profile.save()
    assert AgentProfile.objects.get(pk=profile.pk).env == {"KEY": "another"}
