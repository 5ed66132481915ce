"""Profiles, executors and execution rows refuse invalid values and reveal no secrets."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ValidationError

from executors_app import plugins
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
