"""One supervisor at a time commands an execution, and each take-over raises the generation."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import Lease, LeaseLost, Supervisor, session_transaction
from sessions_app.supervisor import leases
from sessions_app.supervisor.dispatcher import load_pending_sessions, next_start_intent
from tests.supervisor.recording_runtime import RecordingRuntime
from tests.supervisor.rows import change, execution_of, fresh, running_session
from tests.waiting import PATIENCE, eventually

NOW = timezone.now()
LATER, EARLIER = NOW + timedelta(days=1), NOW - timedelta(seconds=1)


def execution(**fields: Any) -> ExecutorRunning:
    return execution_of(running_session(execution={"generation": 4, **fields}))


def supervisor(boot_id: str, *, lives: bool, host_id: str = "") -> None:
    """Create a supervisor's row; the pid of a dead one belongs to another process."""
    process = identity.identify_self()
    known = process if lives else replace(process, start_time=process.start_time - 1)
    Supervisor.objects.create(
        boot_id=boot_id,
        host_id=host_id or identity.host_id(),
        process=known.to_json(),
        started_at=NOW,
        beat_at=NOW,
    )


def open_descriptors() -> set[Path]:
    """Return what this process has open, without the descriptor of the listing itself."""
    return {path for path in Path("/proc/self/fd").iterdir() if path.exists()}


@pytest.mark.embedded
def test_lock_of_an_embedded_database_is_free_after_its_holder_and_leaves_nothing_open(
    tmp_path: Path, settings: Any
) -> None:
    settings.KANDEV_DATA_DIR = tmp_path
    open_before = open_descriptors()
    with leases.SupervisorLock("supervise") as held:
        assert held.take()
        assert not leases.SupervisorLock("sweep").take()
    with leases.SupervisorLock("sweep") as next_holder:
        assert next_holder.take()
    assert open_descriptors() == open_before


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("row", "reported", "generation"),
    [
        ({"owner": "", "lease_expires_at": None}, 0, 5),
        ({"owner": "", "lease_expires_at": None}, 9, 10),
        ({"owner": "", "lease_expires_at": LATER}, 4, 5),
        ({"owner": "me", "lease_expires_at": LATER}, 4, 4),
        ({"owner": "me", "lease_expires_at": LATER}, 0, 4),
        ({"owner": "me", "lease_expires_at": EARLIER}, 4, 4),
        ({"owner": "me", "lease_expires_at": LATER}, 5, 6),
        ({"owner": "other", "lease_expires_at": EARLIER}, 4, 5),
        ({"owner": "other", "lease_expires_at": None}, 7, 8),
        ({"owner": "other", "lease_expires_at": LATER}, 4, None),
        ({"owner": "dead", "lease_expires_at": LATER}, 4, 5),
        ({"owner": "alive", "lease_expires_at": LATER}, 4, None),
        ({"owner": "dead elsewhere", "lease_expires_at": LATER}, 4, None),
    ],
    ids=[
        "free",
        "free, agentctl has seen more",
        "given back",
        "ours",
        "ours, agentctl was started anew",
        "ours, run out",
        "ours, but agentctl has seen a newer one",
        "run out",
        "never renewed",
        "held by another",
        "held by a dead supervisor",
        "held by a living supervisor",
        "held by an unknown supervisor",
    ],
)
def test_lease_is_granted_unless_a_live_supervisor_holds_it(
    row: dict[str, Any], reported: int, generation: int | None
) -> None:
    supervisor("dead", lives=False)
    supervisor("alive", lives=True)
    supervisor("dead elsewhere", lives=False, host_id="another host")
    target = execution(**row)
    lease = leases.acquire_lease(target.id, "me", reported)
    assert lease == (None if generation is None else Lease("me", generation))
    after = fresh(target)
    if lease is None:
        assert (after.owner, after.generation) == (row["owner"], 4)
    else:
        assert (after.owner, after.generation) == ("me", generation)
        assert after.lease_expires_at is not None
        assert after.lease_expires_at > timezone.now() + leases.lease_ttl() / 2


@pytest.mark.django_db
@pytest.mark.parametrize(("elsewhere", "had"), [(False, True), (True, False)])
def test_execution_kept_by_another_machine_cannot_be_leased(
    runtime: RecordingRuntime, elsewhere: bool, had: bool
) -> None:
    target = execution(owner="", runtime=runtime.name, host_id="another machine")
    runtime.elsewhere = {str(target.session_id)} if elsewhere else set()
    assert (leases.acquire_lease(target.id, "me") is not None) == had
    assert (fresh(target).owner, fresh(target).generation) == (("me", 5) if had else ("", 4))


@pytest.mark.django_db
def test_orphaned_sessions_claim_to_run_without_a_live_owner() -> None:
    supervisor("dead", lives=False)
    supervisor("alive", lives=True)
    supervisor("dead elsewhere", lives=False, host_id="another host")
    rows = {
        "given back": execution(owner="", lease_expires_at=None),
        "ended": execution(owner="", lease_expires_at=None, status="stopped"),
        "run out": execution(owner="alive", lease_expires_at=EARLIER),
        "held by a dead supervisor": execution(owner="dead", lease_expires_at=LATER),
        "held by a living supervisor": execution(owner="alive", lease_expires_at=LATER),
        "held by an unknown supervisor": execution(owner="dead elsewhere", lease_expires_at=LATER),
        "mine": execution(owner="me", lease_expires_at=EARLIER),
    }
    found = {session_id for session_id, _ in leases.load_orphaned_sessions("me")}
    assert {name for name, row in rows.items() if row.session_id in found} == {
        "given back",
        "run out",
        "held by a dead supervisor",
    }


@pytest.mark.django_db
def test_pending_intents_exclude_sessions_held_by_others() -> None:
    supervisor("dead", lives=False)
    supervisor("alive", lives=True)
    rows = [execution(owner=owner, lease_expires_at=LATER) for owner in ("", "me", "dead", "alive")]
    for row in rows:
        create_intent(row.session, "cancel", None)
    found = load_pending_sessions("me")
    assert {key: one.overtakes for key, one in found.items()} == {row.session_id: True for row in rows[:3]}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kinds", "overtakes", "starts"),
    [
        (["start"], False, True),
        (["start", "stop"], True, False),
        (["close", "start"], True, False),
        (["answer", "start"], True, True),
        (["answer"], True, False),
    ],
)
def test_pending_work_names_overtaking_intents_and_the_next_start(
    kinds: list[str], overtakes: bool, starts: bool
) -> None:
    row = execution(owner="me", lease_expires_at=LATER)
    orders = {kind: create_intent(row.session, kind, None) for kind in kinds}
    (seen,) = load_pending_sessions("me").values()
    assert (seen.overtakes, seen.start) == (overtakes, orders["start"].id if starts else None)
    assert seen.start == next_start_intent(row.session_id)


@pytest.mark.django_db
def test_missing_execution_cannot_be_leased() -> None:
    target = execution()
    target.delete()
    assert leases.acquire_lease(target.session_id, "me") is None


@pytest.mark.django_db
def test_renewal_returns_the_executions_still_held() -> None:
    mine, other = execution(lease_expires_at=EARLIER), execution(owner="other", lease_expires_at=EARLIER)
    assert leases.renew_leases("me") == {mine.id}
    assert fresh(mine).lease_expires_at > timezone.now()  # type: ignore[operator]
    assert fresh(other).lease_expires_at == EARLIER


@pytest.mark.django_db
def test_released_lease_keeps_its_generation() -> None:
    one, two, other = execution(), execution(), execution(owner="other", lease_expires_at=LATER)
    leases.release_leases("me", one.id)
    assert [fresh(row).owner for row in (one, two, other)] == ["", "me", "other"]
    leases.release_leases("me")
    assert [fresh(row).owner for row in (one, two, other)] == ["", "", "other"]
    assert (fresh(one).generation, fresh(one).lease_expires_at) == (4, None)
    assert leases.acquire_lease(one.id, "other") == Lease("other", 5)


@pytest.mark.django_db(transaction=True)
def test_concurrent_acquisition_grants_one_lease() -> None:
    target = execution()
    names = [f"s{number}" for number in range(4)]
    for name in names:
        supervisor(name, lives=True)
    for turn in range(5):
        change(target, owner="", lease_expires_at=None)
        begin = Barrier(len(names))

        def acquire(name: str, begin: Barrier = begin) -> Lease | None:
            try:
                begin.wait(PATIENCE)
                return leases.acquire_lease(target.id, name)
            finally:
                connection.close()

        with ThreadPoolExecutor(len(names)) as pool:
            got = [lease for lease in pool.map(acquire, names) if lease is not None]
        assert len(got) == 1
        row = fresh(target)
        assert (row.owner, row.generation) == (got[0].owner, got[0].generation) == (got[0].owner, 5 + turn)


@pytest.mark.django_db
def test_supervisor_registers_and_removes_its_row() -> None:
    Supervisor.objects.create(boot_id="long gone", host_id="h", started_at=NOW, beat_at=NOW - timedelta(days=8))
    leases.register_supervisor("me")
    row = Supervisor.objects.get()
    assert (row.boot_id, row.swept_at) == ("me", None)
    assert not leases.is_owner_dead("me")
    leases.mark_first_sweep_done("me")
    assert fresh(row).swept_at is not None
    leases.unregister_supervisor("me")
    assert not Supervisor.objects.exists()
    assert not leases.is_owner_dead("me")


@pytest.mark.django_db
def test_executions_of_other_machines_do_not_block_a_batch(runtime: RecordingRuntime) -> None:
    elsewhere, here, found = (
        execution(owner="", runtime=runtime.name, host_id=host) for host in ("another machine", "", "another machine")
    )
    runtime.elsewhere = {str(elsewhere.session_id)}
    taken = leases.acquire_leases({row.id: 0 for row in (elsewhere, here, found)}, "me")
    assert taken == {row.id: Lease("me", 5) for row in (here, found)}


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no row locks")
def test_renewal_waits_for_a_locked_row_without_holding_others() -> None:
    """Ingest locks several sessions in the order of their ids, so renewal has to use the same order."""
    first, second = sorted((execution(owner="me"), execution(owner="me")), key=lambda one: one.session_id)
    change(first, owner="me")  # it is now stored last, so a plain UPDATE would lock it last

    def renew() -> set[uuid.UUID]:
        try:
            return leases.renew_leases("me")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert ExecutorRunning.objects.select_for_update().get(id=first.id)
            renewed = pool.submit(renew)
            eventually(_has_lock_waiter, describe="the second transaction waits for the first")
            assert ExecutorRunning.objects.select_for_update(nowait=True).get(id=second.id)
        assert renewed.result(10) == {first.id, second.id}


def _has_lock_waiter() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def take_while_reading(monkeypatch: pytest.MonkeyPatch, taken: ExecutorRunning, **values: Any) -> None:
    """Let another supervisor take an execution after ours has read it, and before it writes."""
    read = leases.leased_by_others

    def read_and_lose(rows: Iterable[Any], owner: str) -> set[uuid.UUID]:
        found = read(rows, owner)
        change(taken, **values)
        return found

    monkeypatch.setattr(leases, "leased_by_others", read_and_lose)


@pytest.mark.django_db
@pytest.mark.parametrize("taken", [{"owner": "another", "generation": 4}, {"owner": "", "generation": 5}])
def test_lease_that_was_taken_meanwhile_is_not_taken_from_its_holder(
    monkeypatch: pytest.MonkeyPatch, taken: dict[str, Any]
) -> None:
    row = execution(owner="", lease_expires_at=None)
    take_while_reading(monkeypatch, row, **taken)
    assert leases.acquire_lease(row.id, "me") is None
    assert (fresh(row).owner, fresh(row).generation) == (taken["owner"], taken["generation"])


@pytest.mark.django_db
def test_batch_of_which_one_lease_was_taken_meanwhile_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [execution(owner="", lease_expires_at=None) for _ in range(2)]
    take_while_reading(monkeypatch, rows[1], owner="another", generation=5)
    with pytest.raises(LeaseLost):
        leases.acquire_leases(dict.fromkeys([row.id for row in rows], 0), "me")
    assert fresh(rows[0]).owner == ""


def test_lease_has_ended_at_the_moment_of_its_end() -> None:
    assert leases.is_unexpired(NOW + timedelta(microseconds=1), NOW)
    assert not leases.is_unexpired(NOW, NOW)


@pytest.mark.django_db
def test_lease_of_another_execution_of_the_session_cannot_write() -> None:
    row = execution()
    with pytest.raises(LeaseLost), session_transaction(row.session_id, Lease("me", 4, str(uuid.uuid4()))):
        pass
    with session_transaction(row.session_id, Lease("me", 4, str(row.id))) as written:
        assert written.execution == row
