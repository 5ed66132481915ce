"""Old and settled rows are deleted in small transactions, and no others."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session as WebSession
from django.db import DatabaseError, connection, models
from django.utils import timezone
from django_q.models import Task as QueueTask

from kandev.metrics import collect_metrics
from sessions_app.accounts.models import LoginLink
from sessions_app.hosts import losses
from sessions_app.maintenance import chore_run
from sessions_app.maintenance.chores import CHORES, run_chores
from sessions_app.models import (
    AttentionItem,
    Chore,
    Host,
    HostMaintenance,
    HostProcess,
    Presence,
    RecoverySweep,
    ReviewComment,
    SweepRequest,
    Turn,
    ViewedVersion,
    WaitKey,
    session_transaction,
)
from sessions_app.notifications.models import Delivery
from sessions_app.waits.models import mint_wait_key
from sessions_app.waits.rules.wait_keys import WaitKind
from sessions_app.worker.maintenance import WITHIN
from tests.maintenance.chores import LONG_AGO, run_chore
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db
SOON = timezone.now() + timedelta(days=1)


def key(*, settled: Any, state: str = "completed") -> WaitKey:
    session = running_session()
    run_ = Turn.objects.create(session=session, message_id="m", state=state, started_at=LONG_AGO)
    with session_transaction(session.id) as transaction:
        token = mint_wait_key(transaction, run_, WaitKind.EXTERNAL, "w")
    WaitKey.objects.filter(id=token.id).update(revoked_at=settled)
    return token


def queue_task(*, stopped: Any, success: bool) -> QueueTask:
    name = uuid.uuid4().hex
    return QueueTask.objects.create(
        id=name, name=name, func="math.sqrt", started=LONG_AGO, stopped=stopped, success=success
    )


def link(expires: Any) -> LoginLink:
    return LoginLink.objects.create(user=make_user(), secret_hash=uuid.uuid4().hex, expires_at=expires)


def web_session(expires: Any) -> WebSession:
    return WebSession.objects.create(session_key=uuid.uuid4().hex, session_data="", expire_date=expires)


def sweep(started: Any) -> RecoverySweep:
    return RecoverySweep.objects.create(boot_id="b", trigger="boot", started_at=started)


def presence(expires: Any) -> Presence:
    return Presence.objects.create(session=running_session(), user=make_user(), expires_at=expires)


def notice(resolved: Any) -> AttentionItem:
    session = running_session()
    key = uuid.uuid4().hex
    return AttentionItem.objects.create(
        key=key, kind="held", session=session, task=session.task, what="x", resolved_at=resolved
    )


def delivery(finished: Any) -> Delivery:
    return Delivery.objects.create(channel="email", user=make_user(), finished_at=finished)


def viewed(at: Any) -> ViewedVersion:
    row = ViewedVersion.objects.create(session=running_session(), user=make_user(), version=uuid.uuid4().hex)
    ViewedVersion.objects.update(viewed_at=at)
    return row


def comment_of(session_id: uuid.UUID) -> ReviewComment:
    return ReviewComment.objects.create(session_id=session_id, path="x", first_line=1, last_line=1, text="x")


DELETED_AND_KEPT: dict[str, tuple[str, Callable[[], models.Model], Callable[[], models.Model]]] = {
    "a link": ("logins", lambda: link(LONG_AGO), lambda: link(SOON)),
    "a login": ("logins", lambda: web_session(LONG_AGO), lambda: web_session(SOON)),
    "a key settled long ago": ("keys", lambda: key(settled=LONG_AGO), lambda: key(settled=timezone.now())),
    "a key of an ended run": (
        "keys",
        lambda: key(settled=LONG_AGO),
        lambda: key(settled=LONG_AGO, state="waiting"),
    ),
    "an unsettled key": ("keys", lambda: key(settled=LONG_AGO), lambda: key(settled=None)),
    "a sweep": ("sweeps", lambda: sweep(LONG_AGO), lambda: sweep(timezone.now())),
    "a sweep request": (
        "sweeps",
        lambda: SweepRequest.objects.create(done_at=LONG_AGO),
        lambda: SweepRequest.objects.create(created_at=LONG_AGO),
    ),
    "a notice": ("attention", lambda: notice(LONG_AGO), lambda: notice(None)),
    "a notification": ("attention", lambda: delivery(LONG_AGO), lambda: delivery(None)),
    "a failed task": (
        "worker",
        lambda: queue_task(stopped=LONG_AGO, success=False),
        lambda: queue_task(stopped=timezone.now(), success=False),
    ),
    "a done task": (
        "worker",
        lambda: queue_task(stopped=LONG_AGO, success=True),
        lambda: queue_task(stopped=timezone.now(), success=True),
    ),
    "a viewed file": ("reviews", lambda: viewed(LONG_AGO), lambda: comment_of(running_session().id)),
    "a comment without a session": (
        "reviews",
        lambda: comment_of(uuid.uuid4()),
        lambda: comment_of(running_session().id),
    ),
    "a user who has left": ("presences", lambda: presence(LONG_AGO), lambda: presence(SOON)),
}


@pytest.mark.parametrize("case", DELETED_AND_KEPT)
def test_only_old_and_settled_rows_are_deleted(case: str) -> None:
    chore, make_old, make_kept = DELETED_AND_KEPT[case]
    old, kept = make_old(), make_kept()
    assert run_chore(chore, dry_run=True).removed == 1
    assert _is_there(old)
    done = run_chore(chore)
    assert (done.removed, done.failed, _is_there(old), _is_there(kept)) == (1, False, False, True)
    assert run_chore(chore).removed == 0


def _is_there(row: models.Model) -> bool:
    return type(row)._default_manager.filter(pk=row.pk).exists()


@pytest.mark.parametrize(("case", "chore"), [(case, row[0]) for case, row in DELETED_AND_KEPT.items()][2:11])
def test_unlimited_retention_deletes_no_rows(case: str, chore: str, settings: Any) -> None:
    settings.KANDEV_HISTORY_RETENTION = 0
    DELETED_AND_KEPT[case][1]()
    assert run_chore(chore).removed == 0


def test_newest_sweep_is_always_kept() -> None:
    sweep(LONG_AGO - timedelta(days=1))
    newest = sweep(LONG_AGO)
    assert run_chore("sweeps").removed == 1
    assert RecoverySweep.objects.get() == newest


def test_deleted_keys_stay_counted() -> None:
    key(settled=LONG_AGO)
    before = sorted(collect_metrics()["kandev_tokens_total"], key=str)
    assert run_chore("keys").removed == 1
    assert sorted(collect_metrics()["kandev_tokens_total"], key=str) == before


def test_one_bad_row_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [link(LONG_AGO) for _ in range(5)]
    bad, plain = rows[2].pk, models.QuerySet.delete

    def delete(these: models.QuerySet[Any]) -> Any:
        if these.model is LoginLink and these.filter(pk=bad).exists():
            raise DatabaseError("a page of the disk is gone")
        return plain(these)

    monkeypatch.setattr(models.QuerySet, "delete", delete)
    done = run_chore("logins")
    assert (done.removed, done.failed) == (4, True)
    assert list(LoginLink.objects.values_list("pk", flat=True)) == [bad]
    row = Chore.objects.get(name="logins")
    assert row.failed_at and "a page of the disk is gone" in row.said[0]
    monkeypatch.undo()
    assert run_chore("logins").removed == 1
    again = Chore.objects.get(name="logins")
    assert (again.failed_at, list(again.said)) == (None, [])


def test_batches_are_small_and_the_next_run_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(7):
        link(LONG_AGO)
    monkeypatch.setattr(chore_run, "DELETE_BATCH", 3)
    monkeypatch.setattr(chore_run.ChoreRun, "is_over", property(lambda work: work.removed >= 6))
    assert run_chore("logins").removed == 6
    monkeypatch.undo()
    assert run_chore("logins").removed == 1


def test_failed_chore_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    link(LONG_AGO)
    broken: dict[str, Callable[[Any], Any]] = {
        name: chore for name, chore in CHORES.items() if name in ("presences", "logins")
    }
    broken["presences"] = lambda work: 1 / 0
    monkeypatch.setattr("sessions_app.maintenance.chores.CHORES", dict(reversed(broken.items())))
    first, second = run_chores()
    assert (first.chore, first.failed, second.chore, second.removed) == ("presences", True, "logins", 1)
    failing = {labels["chore"]: number for labels, number in collect_metrics()["kandev_maintenance_failing"]}
    assert failing == {"presences": 1, "logins": 0}
    assert ({"chore": "logins"}, 1) in collect_metrics()["kandev_maintenance_removed_total"]
    (sample,) = collect_metrics()["kandev_maintenance_last_success_timestamp_seconds"]
    assert sample[0] == {"chore": "logins"}


def test_dry_run_writes_nothing() -> None:
    link(LONG_AGO)
    run_chores(dry_run=True)
    assert not Chore.objects.exists()
    assert LoginLink.objects.exists()


@pytest.mark.embedded
@pytest.mark.django_db(transaction=True)
def test_write_ahead_log_is_truncated() -> None:
    for _ in range(50):
        link(SOON)
    done = run_chore("database")
    assert (done.failed, done.said) == (False, [])
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint")
        _, left, _ = cursor.fetchone()
    assert 0 <= left <= 1, "only recently written rows are left"


def test_host_that_sessions_name_stays_known_however_long_it_has_been_gone() -> None:
    gone = Host.objects.create(name="build-1", first_seen_at=LONG_AGO)
    over = Host.objects.create(name="build-2", first_seen_at=LONG_AGO)
    cordoned = Host.objects.create(name="build-3", first_seen_at=LONG_AGO)
    HostMaintenance.objects.create(host=cordoned, cordoned_at=LONG_AGO)
    for host, place in ((gone, "p1"), (over, "p2"), (cordoned, "p3")):
        for days in (2, 1):
            at = LONG_AGO - timedelta(days=days)
            HostProcess.objects.create(host=host, place=place, role="web", release="1", started_at=at, beat_at=at)
    running_session(execution={"host_id": "p1"})
    running_session(execution={"host_id": "p2", "status": "stopped"}, state="COMPLETED")

    run_chore("hosts")

    assert [host.name for host in Host.objects.order_by("name")] == ["build-1", "build-3"]
    kept = HostProcess.objects.order_by("place").values_list("place", "beat_at")
    assert list(kept) == [(place, LONG_AGO - timedelta(days=1)) for place in ("p1", "p3")]
    losses.declare_lost("build-1", None)
    assert losses.count_lost() == 1


def test_chores_without_time_left_are_the_first_of_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limits = {}

    def slow(work: chore_run.ChoreRun) -> None:
        limits[work.chore] = work.deadline - now[0]
        now[0] += 15

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("sessions_app.maintenance.chores.CHORES", dict.fromkeys("abcd", slow))
    assert [work.chore for work in run_chores(within=40)] == ["a", "b", "c"]
    assert limits == {"a": 20, "b": 20, "c": 10}, "none may take longer than is left for all"
    assert [work.chore for work in run_chores(within=20)] == ["d", "a"]
    assert [work.chore for work in run_chores(within=20)] == ["b", "c"]
    assert [work.chore for work in run_chores()] == ["a", "b", "c", "d"], "somebody who runs them waits for all"


def test_chore_that_was_killed_does_not_stop_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(work: chore_run.ChoreRun) -> None:
        raise SystemExit

    monkeypatch.setattr("sessions_app.maintenance.chores.CHORES", {"a": killed, "b": lambda work: None})
    with pytest.raises(SystemExit):
        run_chores(within=60)
    monkeypatch.setattr("sessions_app.maintenance.chores.CHORES", dict.fromkeys("ab", lambda work: None))
    assert [work.chore for work in run_chores(within=60)] == ["b", "a"]


def test_all_chores_together_end_within_the_limit_of_a_job() -> None:
    assert settings.Q_CLUSTER["timeout"] >= WITHIN + 2 * chore_run.TIME_BUDGET
