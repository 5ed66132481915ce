"""Which hosts an executor can belong to."""

from __future__ import annotations

import pytest

from sessions_app.placement.services.executor_hosts import hosts_to_choose
from sessions_app.supervisor import leases
from tests.placement.hosts import add_supervisor

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("is_shared", "offered"), [(True, ["a", "b"]), (False, [])])
def test_only_a_shared_database_has_hosts_to_choose_from(
    monkeypatch: pytest.MonkeyPatch, is_shared: bool, offered: list[str]
) -> None:
    monkeypatch.setattr(leases, "is_shared_database", lambda: is_shared)
    add_supervisor("a")
    assert list(hosts_to_choose(None)) == []
    add_supervisor("b")
    assert [host.name for host in hosts_to_choose(None).order_by("name")] == offered
