"""Staff take hosts out of service by the API; for everybody else there are none."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.hosts.models import HostMaintenance
from tests.hosts.processes import reported
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> APIClient:
    user = make_user()
    user.is_staff = True
    user.save()
    made = APIClient()
    made.force_authenticate(user)
    return made


def test_staff_list_and_drain_hosts(client: APIClient) -> None:
    host = reported("supervisor", 0).host
    session = running_session(execution={"host_id": "p1"})
    (listed,) = client.get("/api/v1/hosts/").json()["results"]
    assert (listed["id"], listed["name"], listed["service"], listed["sessions"]) == (host.pk, "build-1", "", 1)

    answer = client.post(f"/api/v1/hosts/{host.pk}/drain/").json()

    assert [one["id"] for one in answer["sessions"]] == [str(session.id)]
    assert client.get("/api/v1/hosts/").json()["results"][0]["service"] == "draining"
    assert client.post(f"/api/v1/hosts/{host.pk}/uncordon/").status_code == 200
    assert not HostMaintenance.objects.exists()


@pytest.mark.parametrize("address", ["/api/v1/hosts/{}/explode/", "/api/v1/hosts/9999999/drain/"])
def test_unknown_host_or_action_is_not_found(client: APIClient, address: str) -> None:
    host = reported("supervisor", 0).host
    assert client.post(address.format(host.pk)).status_code == 404


@pytest.mark.parametrize("method", ["get", "post"])
def test_members_may_neither_list_nor_act(method: str) -> None:
    host = reported("supervisor", 0).host
    client = APIClient()
    client.force_authenticate(make_user())
    addresses: dict[str, Any] = {"get": "/api/v1/hosts/", "post": f"/api/v1/hosts/{host.pk}/drain/"}
    assert getattr(client, method)(addresses[method]).status_code == 403
    assert not HostMaintenance.objects.exists()
