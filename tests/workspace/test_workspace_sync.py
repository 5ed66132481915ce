"""The work of sandboxes arrives after each snapshot, also after a kill at any time."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app import plugins
from executors_app.backoff import Backoff
from executors_app.repositories import workspace_store
from executors_app.wire.errors import PublicationRefused, RuntimeUnavailable, WorkspaceGone
from executors_app.wire.executions import ExecutionFacts
from executors_app.wire.protocol import JournalKind
from sessions_app.models import LeaseLost, Repository, Task, TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.ingest.batches import ingest_batch
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.executions import load_session
from sessions_app.workspace import workspace_sync
from sessions_app.workspace.workspace_sync import MAX_PUSHES, MAX_REPOSITORY_PUSHES, WorkspaceSync
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import MINE, NO_LEASE, change, execution_of, last_payload, names, running_session
from tests.supervisor.sandbox_runtime import SandboxRuntime, commit_in, git
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)
DELAYED, ARRIVED = "session.workspace.delayed", "session.workspace.arrived"
UNPUBLISHED = "session.workspace.unpublished"


@pytest.fixture
def sandboxes(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> SandboxRuntime:
    """Return the runtime ``sandbox`` with its own archives."""
    settings.KANDEV_DATA_DIR = tmp_path
    made = SandboxRuntime()
    known = {**plugins.runtimes(), made.name: made}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    monkeypatch.setattr("sessions_app.workspace.services.workspace.runtimes", lambda: known)
    return made


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that returns the commit of a snapshot by its content."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    git(scratch, "init", "-q", "--bare")
    return lambda content: commit_in(scratch, content)


Snapshot = Callable[[str], str]


def sandbox_session(sandboxes: SandboxRuntime, content: str = "", commit: str = "", **execution: Any) -> TaskSession:
    """Return a session whose workspace has a snapshot that the journal announced."""
    session = running_session(execution={"runtime": sandboxes.name, **execution})
    sandboxes.refs[str(session.id)] = content
    return change(session) if not commit else announce_snapshot(session, commit)


def announce_snapshot(session: TaskSession, commit: str) -> TaskSession:
    """Write the announcement of a snapshot as ingest does."""
    since = timezone.now() - timedelta(hours=1)
    change(execution_of(session), snapshot_announced=commit, snapshot_due_since=since)
    return session


def has_arrived(session: TaskSession) -> bool:
    """Return whether the announced snapshot has arrived, according to the row."""
    row = execution_of(session)
    return bool(row.snapshot_arrived) and row.snapshot_arrived == row.snapshot_announced


async def wait_until(registry: ExecutionRegistry, holds: Callable[[], Any], describe: str) -> None:
    """Wait until a condition on rows holds."""
    await eventually_async(lambda: registry.database(holds), describe=describe)


def run_with_sync(work: Callable[[ExecutionRegistry, WorkspaceSync], Awaitable[None]]) -> None:
    """Run ``work`` with a supervisor's sync, which is closed afterwards."""

    async def run(registry: ExecutionRegistry) -> None:
        sync = WorkspaceSync(registry.database, registry.boot_id)
        try:
            await work(registry, sync)
        finally:
            await sync.close()

    with_registry(run)


def run_catch_up(*sessions: TaskSession) -> None:
    """Run a new supervisor until the work of all these sessions has arrived."""

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        await sync.catch_up()
        for session in sessions:
            await wait_until(registry, partial(has_arrived, session), "its work has arrived")

    run_with_sync(work)


def facts(session: TaskSession) -> ExecutionFacts:
    return execution_facts_of(execution_of(session), load_session(session.id))


# --- what the journal announces ---


def test_snapshot_line_announces_its_commit() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.line(JournalKind.WORKSPACE_SNAPSHOT, commit=commit) for commit in ("c1", "c2")])
    row = execution_of(session)
    assert (row.snapshot_announced, row.snapshot_arrived) == ("c2", "")
    assert row.snapshot_due_since is not None and row.snapshot_due_since.timestamp() == 1_750_000_001.0


def test_snapshot_is_not_announced_without_the_lease() -> None:
    session, journal = running_session(execution={"owner": "another"}), Journal()
    with pytest.raises(LeaseLost):
        ingest_batch(session.id, MINE, [journal.line(JournalKind.WORKSPACE_SNAPSHOT, commit="c1")])
    assert execution_of(session).snapshot_announced == ""


def test_overlong_commit_of_a_hostile_journal_is_cut() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.line(JournalKind.WORKSPACE_SNAPSHOT, commit="c" * 5000)])
    assert execution_of(session).snapshot_announced == "c" * 64


# --- after a kill ---


@pytest.mark.parametrize(
    "status", [{"status": "ready"}, {"status": "stopped"}, {"status": "error", "error_code": "spawn_failed"}]
)
def test_work_that_has_not_arrived_is_pushed_at_start(
    sandboxes: SandboxRuntime, snapshot: Snapshot, status: dict[str, Any]
) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE, **status)
    run_catch_up(session)
    row = execution_of(session)
    assert row.snapshot_arrived == snapshot("new")
    assert (row.snapshot_due_since, row.snapshot_error_code) == (None, "")


def test_arrived_work_is_not_pushed_again(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    settled, due = sandbox_session(sandboxes), sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    change(execution_of(settled), snapshot_announced="c", snapshot_arrived="c", **NO_LEASE)
    run_catch_up(due)
    assert sandboxes.pushed == [str(due.id)]


def test_sessions_of_other_runtimes_are_never_due(sandboxes: SandboxRuntime) -> None:
    change(execution_of(running_session()), snapshot_announced="c", **NO_LEASE)
    assert workspace_sync.load_due_transfers("me") == {}


def test_session_of_another_supervisor_is_left_to_it(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), owner="another")
    assert workspace_sync.load_due_transfers("me") == {}
    assert workspace_sync.begin_transfer("me", execution_of(session).id) is None
    change(execution_of(session), lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert set(workspace_sync.load_due_transfers("me")) == {execution_of(session).id}


def test_second_supervisor_cannot_begin_the_same_transfer(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), status="stopped", **NO_LEASE)
    execution_id = execution_of(session).id
    assert workspace_sync.begin_transfer("one", execution_id) is not None
    assert workspace_sync.begin_transfer("other", execution_id) is None
    assert workspace_sync.load_due_transfers("other") == {}


def test_result_is_not_written_after_the_lease_is_lost(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), status="stopped", **NO_LEASE)
    begun = workspace_sync.begin_transfer("one", execution_of(session).id)
    assert begun is not None
    change(execution_of(session), owner="other", generation=begun.lease.generation + 1)
    with pytest.raises(LeaseLost):
        workspace_sync.record_arrival(begun, snapshot("new"))
    with pytest.raises(LeaseLost):
        workspace_sync.record_failure(begun, RuntimeUnavailable("away"))
    assert execution_of(session).snapshot_arrived == ""


def test_earlier_execution_of_a_session_is_never_pushed(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    change(session, agent_execution_id=uuid.uuid4())
    assert workspace_sync.load_due_transfers("me") == {}


def test_due_executions_are_found_by_their_index(sandboxes: SandboxRuntime) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL reads a small table as a whole")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        workspace_sync.load_due_transfers("me")
    (query,) = [one["sql"] for one in queries if "snapshot_announced" in one["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query}")
        plan = " ".join(str(row[3]) for row in cursor.fetchall())
    assert "executors_running_snapshots" in plan


# --- after a snapshot ---


def test_snapshots_during_a_push_follow_in_one_more(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "one", snapshot("one"))
    change(execution_of(session), **NO_LEASE)

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        sandboxes.is_open.clear()
        one = await registry.database(facts, session)
        sync.request(one)
        await eventually_async(lambda: sandboxes.tries == 1, describe="the first push has started")
        for content in ("two", "three"):
            sandboxes.refs[str(session.id)] = content
            await registry.database(announce_snapshot, session, snapshot(content))
            sync.request(one)
        sandboxes.is_open.set()
        await wait_until(registry, lambda: has_arrived(session), "the last one followed")

    run_with_sync(work)
    assert sandboxes.tries <= 2
    assert execution_of(session).snapshot_arrived == snapshot("three")


def test_failed_push_is_retried(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    sandboxes.refusals = [RuntimeUnavailable("away"), OSError("broken pipe")]
    run_catch_up(session)
    assert sandboxes.tries == 3


def test_retries_never_end(sandboxes: SandboxRuntime, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "record_failure", lambda self: 0.0)
    session = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    sandboxes.refusals = [RuntimeUnavailable("away") for _ in range(50)]
    run_catch_up(session)
    assert sandboxes.tries == 51


def test_permanent_error_waits_for_the_next_snapshot(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "one", snapshot("one"), **NO_LEASE)
    sandboxes.refusals = [WorkspaceGone("The volume was removed.")]

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        await sync.catch_up()
        await wait_until(registry, lambda: execution_of(session).snapshot_error_code, "it was refused")
        await eventually_async(lambda: not sync._pushes, describe="the push is given up")
        await sync.catch_up()
        assert not sync._pushes
        sandboxes.refs[str(session.id)] = "two"
        await registry.database(announce_snapshot, session, snapshot("two"))
        sync.request(await registry.database(facts, session))
        await wait_until(registry, lambda: has_arrived(session), "the next one arrived")

    run_with_sync(work)
    assert sandboxes.tries == 2


def test_permanent_error_is_retried_after_a_restart(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "one", snapshot("one"), **NO_LEASE)
    sandboxes.refusals = [WorkspaceGone("The volume was removed.")]

    async def refused(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        await sync.catch_up()
        await wait_until(registry, lambda: execution_of(session).snapshot_error_code, "it was refused")

    run_with_sync(refused)
    assert execution_of(session).snapshot_error == "The volume was removed."
    run_catch_up(session)


def test_refused_publication_counts_as_arrived_and_is_recorded_once(
    sandboxes: SandboxRuntime, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is in the archive: nobody may be told that it exists only on the executor."""
    push = SandboxRuntime.push_work

    async def push_and_refuse(self: SandboxRuntime, execution: ExecutionFacts) -> bool:
        await push(self, execution)
        raise PublicationRefused("Too much was published.")

    monkeypatch.setattr(SandboxRuntime, "push_work", push_and_refuse)
    session = sandbox_session(sandboxes, "one", snapshot("one"), **NO_LEASE)

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        await sync.catch_up()
        await wait_until(registry, lambda: has_arrived(session), "its work has arrived")
        sandboxes.refs[str(session.id)] = "two"
        await registry.database(announce_snapshot, session, snapshot("two"))
        sync.request(await registry.database(facts, session))
        await wait_until(registry, lambda: has_arrived(session), "the next one arrived")

    run_with_sync(work)
    assert [one for one in names(session) if one in (DELAYED, UNPUBLISHED)] == [UNPUBLISHED]
    assert last_payload(session, UNPUBLISHED)["error_code"] == "publication_refused"
    assert session_status(load_session(session.id))["snapshot_transfer"] is None


def test_slow_repository_leaves_room_for_others(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    slow = [sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE) for _ in range(6)]
    other = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    repository = Repository.objects.create(team=other.task.team, name="other", path="/other")
    Task.objects.filter(pk=other.task_id).update(repository=repository)
    sandboxes.is_open.clear()

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        for session in slow:
            sync.request(await registry.database(facts, session))
        await eventually_async(lambda: sandboxes.tries == MAX_REPOSITORY_PUSHES, describe="they wait")
        sync.request(await registry.database(facts, other))
        await eventually_async(lambda: sandboxes.tries == MAX_PUSHES, describe="the other one is pushed")
        sandboxes.is_open.set()
        for session in (*slow, other):
            await wait_until(registry, partial(has_arrived, session), "its work has arrived")

    run_with_sync(work)


def test_local_repositories_are_not_pushed(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    near, session = running_session(), sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        sync.request(await registry.database(facts, near))
        sync.request(await registry.database(facts, session))
        await wait_until(registry, lambda: has_arrived(session), "the other's work arrived")

    run_with_sync(work)
    assert sandboxes.pushed == [str(session.id)]


# --- the archive decides what has arrived ---


def test_announced_snapshot_that_never_arrives_stays_due(
    sandboxes: SandboxRuntime, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_sync, "MAX_MISSING_TRIES", 2)
    session = sandbox_session(sandboxes, "older", snapshot("lost"), **NO_LEASE)

    async def work(registry: ExecutionRegistry, sync: WorkspaceSync) -> None:
        await sync.catch_up()
        await wait_until(registry, lambda: execution_of(session).snapshot_error_code, "it is told")
        await eventually_async(lambda: not sync._pushes, describe="the push is given up")

    run_with_sync(work)
    row = execution_of(session)
    assert (row.snapshot_announced, row.snapshot_arrived) == (snapshot("lost"), snapshot("older"))
    assert (row.snapshot_error_code, sandboxes.tries) == ("snapshot_missing", 2)


def test_shared_worktree_counts_by_its_owners_ref(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    owner = sandbox_session(sandboxes, "newest", snapshot("newest"), **NO_LEASE)
    guest = sandbox_session(sandboxes, "", snapshot("before"), worktree_id=str(owner.id), **NO_LEASE)
    run_catch_up(owner, guest)
    assert execution_of(guest).snapshot_arrived == snapshot("newest")


def test_workspace_without_an_archive_is_never_due_again(
    sandboxes: SandboxRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sandbox_session(sandboxes, "", "c1", **NO_LEASE)
    begun = workspace_sync.begin_transfer("me", execution_of(session).id)
    assert begun is not None
    assert workspace_sync.record_arrival(begun, workspace_store.newest_snapshot(begun.owner_id)) is True
    assert workspace_sync.load_due_transfers("me") == {}


# --- status and events ---


def test_status_shows_what_has_not_arrived(sandboxes: SandboxRuntime, snapshot: Snapshot) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    begun = workspace_sync.begin_transfer("me", execution_of(session).id)
    assert begun is not None
    workspace_sync.record_failure(begun, RuntimeUnavailable("The Docker engine cannot be reached."))
    transfer = session_status(load_session(session.id))["snapshot_transfer"]
    since = execution_of(session).snapshot_due_since
    assert since is not None
    assert transfer == {
        "commit": snapshot("new"),
        "since": since.isoformat(),
        "overdue": True,
        "error_code": "runtime_unavailable",
        "error_message": "The Docker engine cannot be reached.",
    }
    workspace_sync.record_arrival(begun, snapshot("new"))
    assert session_status(load_session(session.id))["snapshot_transfer"] is None


def test_fresh_snapshot_is_not_overdue(sandboxes: SandboxRuntime) -> None:
    session = sandbox_session(sandboxes)
    change(execution_of(session), snapshot_announced="c", snapshot_due_since=timezone.now())
    transfer = session_status(load_session(session.id))["snapshot_transfer"]
    assert (transfer["overdue"], transfer["error_code"]) == (False, "")


def test_outage_is_logged_once(sandboxes: SandboxRuntime, snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    session = sandbox_session(sandboxes, "new", snapshot("new"), **NO_LEASE)
    sandboxes.refusals = [
        RuntimeUnavailable("away"),
        RuntimeUnavailable("still away"),
        RuntimeUnavailable("still away"),
    ]
    with caplog.at_level(logging.WARNING):
        run_catch_up(session)
    assert [one for one in names(session) if one in (DELAYED, ARRIVED)] == [DELAYED, ARRIVED]
    assert last_payload(session, DELAYED)["error_message"] == "away"
    assert len([one for one in caplog.records if "has not arrived" in one.getMessage()]) == 1
