"""Stored runs: only one supervisor drives each, every step is stored, and the API's document is complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from sessions_app.attention.services import inbox
from sessions_app.models import AttentionItem
from sessions_app.sessions.services import intents
from sessions_app.workflows.driver.leases import RunLease
from sessions_app.workflows.driver.run_snapshot import RunSnapshot, read_run_snapshot
from sessions_app.workflows.services import runs
from sessions_app.workflows.services.run_documents import run_document
from tests.services import ROOT
from tests.supervisor.rows import change, execution_of, fresh
from tests.workflows.run_world import Scripts, TestDriver, World
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db

EXAMPLES = ROOT / "docs/examples/workflows"
SHELL = workflow([node("say", "shell", script="echo it", timeout=30)])
AGENT = workflow([node("coder", "agent", prompt="Write it.", timeout=60)])
TWO_TURNS = workflow(
    [node("first", "agent", prompt="One."), node("second", "agent", prompt="Two.")],
    ["first.sessionId > second.sessionId"],
)


def test_two_supervisors_never_drive_one_run() -> None:
    world = World(SHELL, Scripts(answer=lambda script: None))
    world.drive(2, supervisor="first")
    version = fresh(world.run).version
    run = world.drive(3, supervisor="second")
    assert (run.owner, run.generation, run.version) == ("first", 1, version)


def test_state_after_a_step_is_what_another_driver_would_read() -> None:
    steps: list[RunSnapshot] = []

    class Comparing(TestDriver):
        async def _step(self, lease: RunLease, snapshot: RunSnapshot) -> RunSnapshot | None:
            assert snapshot == await self._database(read_run_snapshot, lease)
            steps.append(snapshot)
            return await super()._step(lease, snapshot)

    chain = [node("a", "shell", script="a"), node("b", "agent", prompt="Write it."), node("c", "shell", script="c")]
    world = World(workflow(chain, ["a > b", "b > c"]))
    world.drivers["me"] = Comparing("me", world.scripts)
    assert world.run_to_end().state == "succeeded"
    assert len(steps) >= len(chain)


def test_lost_lease_prevents_writes() -> None:
    world = World(SHELL, Scripts(answer=lambda script: None))
    world.drive(2, supervisor="first")
    driver = world.drivers["first"]
    change(world.run, owner="second", generation=2, lease_expires_at=timezone.now() + timedelta(hours=1))
    before = fresh(world.run).version
    world.scripts.answer = lambda script: {"exit_code": 0}
    async_to_sync(driver._advance_run)(world.run.id)
    assert fresh(world.run).version == before
    assert world["say"].state == "running"


def test_long_run_is_written_step_by_step() -> None:
    nodes = [node(f"n{number}", "constant", value=number) for number in range(600)]
    assert World(workflow(nodes), repository=None).run_to_end(passes=5).state == "succeeded"


FAILING = workflow([node("wrong", "function", code="throw new Error('no')", outputs=["x"])])


def test_failed_run_without_sessions_is_in_the_inbox() -> None:
    world = World(FAILING, repository=None)
    run = world.run_to_end()
    assert (run.state, run.task.sessions.count()) == ("failed", 0)
    world.user.groups.add(run.team)
    (item,) = inbox.open_items_for(world.user)
    assert (item.path, item.session_id, item.run_id) == (f"/workflows/runs/{run.id}/", None, run.id)
    assert list(inbox.open_items_for(world.user).filter(inbox.own_items(world.user))) == [item]
    runs.retry_run(world.user, run)
    assert not inbox.open_items_for(world.user).exists()
    world.run_to_end()
    assert inbox.open_items_for(world.user).count() == 1


def test_failed_run_with_sessions_links_to_the_run() -> None:
    world = World(SHELL, Scripts(answer=lambda script: {"exit_code": 1}))
    run = world.run_to_end()
    item = AttentionItem.objects.get(run=run)
    assert (item.path, item.session_id) == (f"/workflows/runs/{run.id}/", run.workspace_id)


def test_run_document_is_complete(django_assert_max_num_queries: Callable[..., object]) -> None:
    world = World(TWO_TURNS)
    run = world.run_to_end()
    with django_assert_max_num_queries(2):  # type: ignore[attr-defined]
        document = run_document(fresh(run))
    assert json.loads(json.dumps(document)) == document
    assert [one["path"] for one in document["nodes"]] == ["first", "second"]


def test_unstorable_characters_are_replaced() -> None:
    code = "return {result: String.fromCharCode(0) + String.fromCharCode(0xd800)}"
    world = World(workflow([node("odd", "function", code=code, outputs=["result"])]), repository=None)
    run = world.run_to_end()
    assert run.state == "succeeded", run.error
    assert run.outputs == {"result": "\N{REPLACEMENT CHARACTER}" * 2}


def test_stopped_workspace_fails_waiting_script() -> None:
    world = World(SHELL, Scripts(is_up=False))
    run = world.drive()
    assert run.workspace is not None
    intents.request_stop(run.workspace.id, world.user)
    run = world.drive(2)
    assert (run.state, "workspace session of the run was stopped" in run.error) == ("failed", True)


def test_run_is_left_to_the_machine_of_its_workspace() -> None:
    world = World(SHELL, Scripts(is_up=False))
    run = world.drive()
    assert run.workspace is not None
    assert run.owner == "me"
    change(execution_of(run.workspace), host_id="elsewhere")
    run = world.drive()
    assert (run.owner, run.lease_expires_at) == ("", None)
