"""The nodes of clusters are shown beside the hosts, and only their cluster drains them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from rest_framework.test import APIClient

from executors_app.models import Executor
from sessions_app.hosts.cluster_nodes import ClusterNode, list_cluster_nodes
from tests.hosts.test_command import run
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db
DRAIN = "kubectl drain --force --delete-emptydir-data --ignore-daemonsets node-1"


def on_node(name: object, **values: object) -> None:
    """Make a session of the executor called Cluster whose Pod is on a node."""
    cluster, _ = Executor.objects.get_or_create(name="Cluster", defaults={"runtime": "local_standalone"})
    running_session(execution={"state": {"node": name}, "executor": cluster, **values})


@pytest.fixture
def staff() -> User:
    user = make_user()
    user.is_staff = True
    user.save()
    return user


def test_each_node_has_the_number_of_its_sessions() -> None:
    on_node("node-1")
    on_node("node-1")
    on_node("node-2", status="error", error_code="unreachable")
    on_node("node-3", status="stopped")
    on_node("")
    running_session()
    found = list_cluster_nodes()
    assert [(one.name, one.executor, one.sessions) for one in found] == [
        ("node-1", "Cluster", 2),
        ("node-2", "Cluster", 1),
    ]


def test_nodes_are_counted_in_one_query(django_assert_num_queries: Any) -> None:
    on_node("node-1")
    on_node("node-2")
    with django_assert_num_queries(1):
        list_cluster_nodes()


@pytest.mark.parametrize("name", ["a; reboot", "$(reboot)", "Node", "", "a" * 254, {"a": 1}])
def test_name_that_no_node_can_have_is_never_part_of_a_command(name: object) -> None:
    assert ClusterNode(str(name), "Cluster", 1).drain_command == ""


def test_command_lists_nodes_with_their_sessions() -> None:
    on_node("node-1")
    assert run().splitlines()[0] == "node-1  1 agent  NODE OF A CLUSTER  Cluster"
    assert json.loads(run("--json"))["nodes"] == [
        {"name": "node-1", "executor": "Cluster", "sessions": 1, "drain_command": DRAIN}
    ]


@pytest.mark.parametrize("action", ["drain", "cordon", "uncordon"])
def test_drain_of_a_node_names_the_command_of_its_cluster(action: str) -> None:
    on_node("node-1")
    with pytest.raises(CommandError, match=f"refuses without --force.* Use “{DRAIN}”") as error:
        call_command("hosts", action, "node-1")
    assert error.value.returncode == 2


def test_staff_see_nodes_on_the_page_and_in_the_api(staff: User) -> None:
    on_node("node-1")
    api, browser = APIClient(), Client()
    api.force_authenticate(staff)
    browser.force_login(staff)
    (node,) = api.get("/api/v1/hosts/nodes/").json()["results"]
    assert node == {"name": "node-1", "executor": "Cluster", "sessions": 1, "drain_command": DRAIN}
    text = browser.get("/system/").content.decode()
    assert "Nodes of clusters" in text and DRAIN in text


def test_page_without_a_cluster_has_no_section_of_nodes(staff: User) -> None:
    browser = Client()
    browser.force_login(staff)
    assert "Nodes of clusters" not in browser.get("/system/").content.decode()
