"""A database, a data directory and a running agentctl of release 1.0.0 are upgraded without a loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.deployment import ROOT
from tests.drills.session_steps import wait_until_talking
from tests.upgrades.restored import FrozenAgentctl, RestoredDeployment
from tests.waiting import eventually

pytestmark = pytest.mark.database

VERSION = "1.0.0"
WHEEL = Path(__file__).parent / VERSION / f"kandev_agentctl-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def agentctl(tmp_path_factory: pytest.TempPathFactory) -> FrozenAgentctl:
    return FrozenAgentctl(WHEEL, tmp_path_factory.mktemp("agentctl") / "environment")


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[RestoredDeployment]:
    made = RestoredDeployment(tmp_path, VERSION)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.any_database
def test_frozen_agentctl_runs_its_own_code_and_finds_its_dependencies(agentctl: FrozenAgentctl) -> None:
    assert not agentctl.location().startswith(str(ROOT))
    assert {"aiohttp", "orjson"} <= agentctl.dependencies().keys()


def test_upgrade_keeps_every_row_and_the_object_store_of_the_repository(restored: RestoredDeployment) -> None:
    before = restored.count_rows()
    assert all(before.values())
    restored.migrate()
    assert restored.count_rows() == before
    assert {row["store_id"] for row in restored.rows("SELECT store_id FROM repositories")} == {""}


def test_session_of_the_release_is_read_and_resumed_after_the_upgrade(restored: RestoredDeployment) -> None:
    session = restored.session
    restored.migrate()
    restored.serve()
    messages = restored.api("GET", f"{session.path}/messages/?after=0")["results"]
    assert [message["text"] for message in messages if message["role"] == "user"] == ["remember walrus"]
    assert session.agent_text() == session.agent_log()
    session.prompt("work 1")
    eventually(
        lambda: [row["state"] for row in session.prompts()] == ["done", "done"],
        timeout=90,
        describe="the second prompt is done",
    )
    assert session.receipts()[-1]["kind"] in ("resumed", "loaded")


@pytest.mark.any_database
def test_agentctl_of_the_release_is_reattached_and_prompted(
    restored: RestoredDeployment, agentctl: FrozenAgentctl
) -> None:
    session = restored.session
    restored.migrate()
    with agentctl.serving(session) as pid:
        restored.serve()
        session.prompt("work 6")
        wait_until_talking(session)
        assert session.execution["pid"] == pid
        restored.kill_server()
        swept = restored.recover()
        (row,) = [each for each in swept["sessions"] if each["session_id"] == session.id]
        assert row["receipt_kind"] == "reattached"
        restored.serve()
        session.prompt("work 1")
        eventually(
            lambda: [row["state"] for row in session.prompts()] == ["done"] * 3,
            timeout=90,
            describe="every prompt is done",
        )
        assert session.execution["pid"] == pid
        assert "session.run.interrupted" not in session.names()
        assert session.agent_text() == session.agent_log()
        restored.kill_server()  # first: it would start another agentctl in place of the one that ends now
