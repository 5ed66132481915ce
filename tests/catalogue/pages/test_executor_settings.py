"""The settings pages of executors: forms for each runtime, the default, guarded edits, and what depends on one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from executors_app.models import Executor
from executors_app.plugins import runtimes
from sessions_app.catalogue.executor_forms import RUNTIME_HELP, SETTINGS
from sessions_app.catalogue.services import executor_settings
from sessions_app.catalogue.services.offers import default_executor
from sessions_app.supervisor import leases
from tests.pages.world import World
from tests.placement.hosts import add_supervisor

pytestmark = pytest.mark.any_database

LIST = "/settings/executors/"


def address(executor: Executor, action: str = "") -> str:
    return f"{LIST}{executor.pk}/{action}"


def entered(client: Client, executor: Executor, **values: Any) -> dict[str, Any]:
    """Return what the form of the page sends if a user changes these values."""
    page = client.get(address(executor))
    form = page.context["form"]
    shown = {name: form[name].value() for name in form.fields}
    return {
        "version": page.context["version"],
        **{name: value for name, value in shown.items() if value is not None},
        **values,
    }


def test_every_runtime_is_offered_with_its_settings_in_words(staff: Client) -> None:
    html = staff.get(f"{LIST}new/").text
    for name in runtimes():
        assert f"{LIST}new/{name}/" in html
        assert name in SETTINGS
        assert RUNTIME_HELP[name]


def test_new_executor_has_its_settings_and_is_not_the_default(staff: Client, world: World) -> None:
    body = {
        "name": "A first one",
        "max_live": "",
        "config-memory_mb": "8192",
        "config-cpus": "",
        "config-image": "agents",
    }
    page = staff.post(f"{LIST}new/local_docker/", body, follow=True)
    made = Executor.objects.get(name="A first one")
    assert (made.runtime, made.config, made.max_live) == ("local_docker", {"memory_mb": 8192, "image": "agents"}, None)
    assert default_executor() == world.executor
    assert "Make default" in page.text


def test_settings_without_a_value_are_empty_and_those_with_few_values_are_chosen(staff: Client, world: World) -> None:
    form = staff.get(f"{LIST}new/kubernetes/").context["form"]
    assert [name for name in form.fields if form[name].value() not in (None, "")] == []
    body = {"name": "Pods", "config-access_mode": "ReadWriteOncePod", "config-image_pull_policy": "", "config-pod": ""}
    staff.post(f"{LIST}new/kubernetes/", body)
    made = Executor.objects.get(name="Pods")
    assert made.config == {"access_mode": "ReadWriteOncePod"}
    page = staff.post(address(made), entered(staff, made, **{"config-access_mode": "ReadOnly"}))
    assert (page.status_code, "is not one of the available choices" in page.text) == (422, True)
    staff.post(address(made), entered(staff, made, **{"config-access_mode": ""}))
    made.refresh_from_db()
    assert made.config == {}


def test_settings_that_the_runtime_refuses_are_explained(staff: Client, world: World) -> None:
    body = {"name": "There", "config-url": "http://build1.example", "config-token_file": "build1.token"}
    page = staff.post(f"{LIST}new/remote/", body)
    assert page.status_code == 422
    assert "must use https" in page.text
    taken = staff.post(f"{LIST}new/local_standalone/", {"name": world.executor.name})
    assert "There is an executor with this name already." in taken.text
    assert staff.post(f"{LIST}new/nowhere/").status_code == 404


def test_paths_of_repositories_are_entered_as_lines(staff: Client) -> None:
    body = {
        "name": "There",
        "config-url": "https://build1.example:8443",
        "config-token_file": "build1.token",
        "config-repositories": "/srv/app = ssh://git@git.example/app.git\n",
    }
    staff.post(f"{LIST}new/remote/", body)
    made = Executor.objects.get(name="There")
    assert made.config["repositories"] == {"/srv/app": "ssh://git@git.example/app.git"}
    staff.post(address(made), entered(staff, made, **{"config-fingerprint": "ab" * 32}))
    made.refresh_from_db()
    assert made.config["repositories"] == {"/srv/app": "ssh://git@git.example/app.git"}
    assert made.config["fingerprint"] == "ab" * 32


def test_second_editor_is_told_and_overwrites_nothing(staff: Client, world: World) -> None:
    first, second = entered(staff, world.executor, max_live=3), entered(staff, world.executor, name="Renamed")
    assert staff.post(address(world.executor), first).status_code == 302
    page = staff.post(address(world.executor), second)
    world.executor.refresh_from_db()
    assert (page.status_code, world.executor.name, world.executor.max_live) == (409, "Here", 3)
    assert "Changed meanwhile" in page.text
    assert 'value="Renamed"' in page.text


def test_default_changes_only_when_somebody_makes_it(staff: Client, world: World) -> None:
    other = executor_settings.add_executor({"name": "Another", "runtime": "local_standalone"}, world.ada)
    assert default_executor() == world.executor
    assert "Make another one the default first" in staff.post(address(world.executor, "disable/"), follow=True).text
    assert staff.post(address(world.executor, "delete/")).status_code == 409
    staff.post(address(other, "default/"))
    staff.post(address(world.executor, "default/"))
    staff.post(address(other, "default/"))
    assert list(Executor.objects.filter(is_default=True)) == [other]
    staff.post(address(world.executor, "disable/"))
    assert "This executor is disabled" in staff.post(address(world.executor, "default/"), follow=True).text
    assert default_executor() == other


def test_what_depends_on_an_executor_is_said_before_it_is_deleted(staff: Client, world: World) -> None:
    world.session()
    assert "used by 1 session, 1 execution." in staff.get(address(world.executor, "delete/")).text
    assert staff.post(address(world.executor, "delete/")).status_code == 409
    other = executor_settings.add_executor({"name": "Another", "runtime": "local_standalone"}, world.ada)
    assert "was deleted" in staff.post(address(other, "delete/"), follow=True).text
    assert not Executor.objects.filter(pk=other.pk).exists()


def test_test_of_an_executor_reports_and_changes_nothing(staff: Client, world: World) -> None:
    assert "is available" in staff.post(address(world.executor, "test/"), follow=True).text
    assert staff.post(address(world.executor, "explode/")).status_code == 404


def test_host_is_offered_once_there_are_several(staff: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)
    add_supervisor("a")
    assert "host" not in staff.get(address(world.executor)).context["form"].fields
    host = add_supervisor("b")
    body = entered(staff, world.executor, host=str(host.pk))
    staff.post(address(world.executor), body)
    world.executor.refresh_from_db()
    assert world.executor.host == host
    assert "host b" in staff.get(LIST).text
    assert staff.post(address(world.executor), body).status_code == 409
    staff.post(address(world.executor), entered(staff, world.executor, host=""))
    world.executor.refresh_from_db()
    assert world.executor.host is None


def test_executor_of_another_machine_has_no_host(staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)
    add_supervisor("a"), add_supervisor("b")
    assert "host" not in staff.get(f"{LIST}new/remote/").context["form"].fields
    assert "host" in staff.get(f"{LIST}new/local_docker/").context["form"].fields
