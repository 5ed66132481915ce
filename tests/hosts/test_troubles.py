"""What is wrong with a deployment is an item in the inboxes of staff, raised once and ended when it is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from executors_app.models import SecretKeyCheck
from sessions_app.attention.models import CAME_BACK_WITHIN, open_item, raise_for_deployment
from sessions_app.attention.rules import notices
from sessions_app.attention.services import inbox
from sessions_app.hosts import services, troubles
from sessions_app.hosts.heartbeats import Heartbeat, host_name
from sessions_app.hosts.models import Host, HostMaintenance, HostProcess, Role
from sessions_app.hosts.rules.troubles import is_backup_old, is_disk_low, is_missing
from sessions_app.hosts.troubles import TroubleWatch, update_troubles
from sessions_app.maintenance.backups import record_backup
from sessions_app.models import AttentionItem
from sessions_app.notifications import delivery
from sessions_app.notifications.models import DeliveredItem, Delivery, NotificationSettings, Webhook
from tests.api.world import client_of
from tests.hosts.processes import attended, reported
from tests.pages.world import World
from tests.supervisor.rows import running_session

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.mark.parametrize(
    ("seconds", "was_missing", "missing"),
    [(179, False, False), (180, False, True), (1, True, True), (None, False, True)],
)
def test_process_is_missing_after_three_minutes(seconds: int | None, was_missing: bool, missing: bool) -> None:
    since = None if seconds is None else NOW - timedelta(seconds=seconds)
    assert is_missing(since, NOW, was_missing=was_missing) is missing


@pytest.mark.parametrize(
    ("gigabytes", "was_low", "low"), [(5, False, False), (4.9, False, True), (5.9, True, True), (6, True, False)]
)
def test_disk_at_its_limit_is_not_reported_repeatedly(gigabytes: float, was_low: bool, low: bool) -> None:
    assert is_disk_low(int(gigabytes * 1e9), was_low=was_low) is low


@pytest.mark.parametrize(("hours", "limit", "old"), [(36, 36, False), (37, 36, True), (999, 0, False)])
def test_backup_is_old_after_its_limit_and_never_without_one(hours: int, limit: int, old: bool) -> None:
    assert is_backup_old(NOW - timedelta(hours=hours), NOW, limit * 3600) is old


def open_keys() -> set[str]:
    return set(AttentionItem.objects.filter(resolved_at=None, kind="system").values_list("key", flat=True))


def missing_worker() -> HostProcess:
    return reported("worker", 600)


def unattended_host() -> HostProcess:
    running_session(execution={"host_id": "p1"})
    return reported("supervisor", 600)


def full_disk() -> HostProcess:
    return reported("web", 5, free_bytes=10**9)


def old_backup() -> HostProcess:
    record_backup("build-1", timezone.now() - timedelta(days=3), "/backup/1")
    return reported("web", 5)


def old_backup_of_no_host() -> HostProcess:
    record_backup("where backups are taken", timezone.now() - timedelta(days=3), "/backup/1")
    return reported("web", 5)


def mend(trouble: Any) -> None:
    """Let the trouble be over."""
    if trouble is full_disk:
        HostProcess.objects.update(free_bytes=10**11)
    elif trouble is old_backup:
        record_backup("build-1", timezone.now(), "/backup/2")
    elif trouble is old_backup_of_no_host:
        record_backup("where backups are taken", timezone.now(), "/backup/2")
    else:
        HostProcess.objects.update(ended_at=None, beat_at=timezone.now())
        attended("p1")


@pytest.mark.parametrize(
    ("trouble", "key", "step"),
    [
        (missing_worker, "system:worker", "Start manage.py qcluster"),
        (unattended_host, "system:unattended:build-1", "Start manage.py supervise on build-1"),
        (full_disk, "system:disk:build-1", "Free space on the disk of the data directory"),
        (old_backup, "system:backup:build-1", "Run deploy/back-up on build-1"),
        (old_backup_of_no_host, "system:backup", "Run deploy/back-up"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_trouble_is_raised_once_with_its_evidence_and_ended(trouble: Any, key: str, step: str) -> None:
    trouble()
    update_troubles()
    item = AttentionItem.objects.get(key=key)
    assert item.next_step.startswith(step)
    assert item.detail, "the evidence"
    created_at = item.created_at
    update_troubles()
    assert (open_keys(), AttentionItem.objects.get().created_at) == ({key}, created_at)

    mend(trouble)
    update_troubles()

    item.refresh_from_db()
    assert (open_keys(), item.resolution, item.resolved_at is None) == (set(), "over", False)


def test_wrong_secret_key_of_one_process_is_not_ended_by_those_with_the_right_one(settings: Any) -> None:
    SecretKeyCheck.objects.update_or_create(id=1)
    right_key, web = settings.SECRET_KEY, Heartbeat(Role.WEB)
    settings.SECRET_KEY = "another key than that of the database"
    web.beat()
    update_troubles()
    item = AttentionItem.objects.get()
    assert item.detail == f"Processes with another key: web server on {host_name()}."

    settings.SECRET_KEY = right_key  # as in another process
    update_troubles()
    assert open_keys() == {"system:secret_key"}

    web.beat()
    update_troubles()
    assert open_keys() == set()


def test_watch_survives_what_it_cannot_look_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(hosts: object) -> Any:
        raise ValueError("damaged")

    monkeypatch.setattr(troubles, "newest_backups", fail)
    TroubleWatch().look_if_due()
    assert "what is wrong with the deployment cannot be looked at" in caplog.text


def test_limit_of_backups_beyond_all_time_is_never_reached(settings: Any) -> None:
    settings.KANDEV_BACKUP_MAX_AGE = 1e18
    old_backup()
    update_troubles()
    assert open_keys() == set()


@pytest.mark.postgresql
def test_clock_of_this_host_makes_nothing_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    reported("worker", 100)
    running_session(execution={"host_id": "p1"})
    reported("supervisor", 100)
    fast = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr(timezone, "now", lambda: fast)
    update_troubles()
    assert open_keys() == set()


def test_nothing_is_raised_where_all_is_well_or_unknown() -> None:
    reported("worker", 5)
    reported("supervisor", 5, free_bytes=10**11)
    reported("web", 5)
    update_troubles()
    assert not AttentionItem.objects.exists(), "a backup that nobody recorded is unknown, not old"


def test_looking_while_nothing_changes_writes_nothing(django_assert_max_num_queries: Any) -> None:
    missing_worker()
    update_troubles()
    with django_assert_max_num_queries(12) as queries:
        update_troubles()
    assert all(query["sql"].lstrip("( ").upper().startswith("SELECT") for query in queries.captured_queries)


def test_process_that_has_just_started_ends_items_and_raises_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    raise_for_deployment(notices.secret_key_notice())
    missing_worker()
    watch = TroubleWatch()
    watch.look_if_due()
    assert open_keys() == set()
    now[0] += 59
    watch.look_if_due()
    now[0] += 130
    watch.look_if_due()
    assert open_keys() == {"system:worker"}


def test_trouble_that_comes_back_is_new_for_everybody_again(world: World) -> None:
    staff = User.objects.create_user("root", is_staff=True)
    raise_for_deployment(notices.secret_key_notice())
    item = AttentionItem.objects.get()
    inbox.acknowledge_item(item, staff)
    assert inbox.count_unseen(staff) == 0
    update_troubles()
    AttentionItem.objects.update(resolved_at=timezone.now() - CAME_BACK_WITHIN)
    assert raise_for_deployment(notices.secret_key_notice())
    assert not raise_for_deployment(notices.secret_key_notice())
    assert inbox.count_unseen(staff) == 1


def test_trouble_that_comes_back_at_once_tells_nobody_again(world: World) -> None:
    staff = User.objects.create_user("root", is_staff=True)
    worker = missing_worker()
    update_troubles()
    item = AttentionItem.objects.get()
    inbox.acknowledge_item(item, staff)
    for beat_at in (timezone.now(), worker.beat_at):
        HostProcess.objects.update(beat_at=beat_at)
        update_troubles()
    again = AttentionItem.objects.get()
    assert (again.resolved_at, again.resolution, again.created_at) == (None, "", item.created_at)
    assert inbox.count_unseen(staff) == 0


URL = "/api/v1/attention/"


def test_only_staff_see_what_is_wrong_with_the_deployment(world: World) -> None:
    staff = client_of(User.objects.create_user("root", is_staff=True))
    raise_for_deployment(notices.secret_key_notice())
    item = AttentionItem.objects.get()
    (seen,) = staff.get(URL).json()["results"]
    expected = {"kind": "system", "url": "/system/", "task_title": "System", "team": "", "agent_profile": ""}
    assert {name: seen[name] for name in expected} == expected
    assert [seen[f"{name}_id"] for name in ("task", "session", "workflow", "run")] == [None] * 4
    assert staff.post(f"{URL}{item.id}/acknowledge/").status_code == 200

    member = client_of(world.ada)
    for query in ("", "?state=all", "?state=news", "?kind=system"):
        assert member.get(f"{URL}{query}").json()["results"] == []
    for action in ("acknowledge", "dismiss"):
        assert member.post(f"{URL}{item.id}/{action}/").status_code == 404
    assert not AttentionItem.objects.visible_to(world.ada).exists()
    assert inbox.count_unseen(world.ada) == 0


def test_inbox_of_staff_links_to_the_system_page(client: Client) -> None:
    reported("worker", 600)
    update_troubles()
    client.force_login(User.objects.create_user("root", is_staff=True))
    shown = client.get("/attention/").text
    assert '<a href="/system/">System</a>' in shown
    assert "No worker is running" in shown
    assert "The last worker reported at" in shown
    client.force_login(User.objects.create_user("carol"))
    assert "No worker is running" not in client.get("/attention/").text


def test_staff_are_told_by_mail_and_webhook_and_teams_are_not(world: World, settings: Any) -> None:
    settings.KANDEV_EMAIL = True
    staff = User.objects.create_user("root", email="root@example.org", is_staff=True)
    ada = world.ada
    User.objects.filter(id=ada.id).update(email="ada@example.org")
    for user in (staff, ada):
        NotificationSettings.objects.update_or_create(user=user, defaults={"email": True})
    long_ago = timezone.now() - timedelta(days=1)
    for owner in ({"user": staff}, {"user": ada}):
        Webhook.objects.create(url="https://example.org/", **owner)
    Webhook.objects.update(created_at=long_ago)
    raise_for_deployment(notices.secret_key_notice())
    AttentionItem.objects.update(created_at=timezone.now() - timedelta(minutes=1))

    delivery.plan_deliveries()

    told = Delivery.objects.order_by("channel").values_list("channel", "user", "webhook__user")
    assert list(told) == [("email", staff.id, None), ("webhook", None, staff.id)]
    mail = Delivery.objects.get(channel="email").payload
    assert mail["subject"] == "[Kandev] The secret key is not the one of this database: System"
    assert "team" not in mail["text"]
    sent = Delivery.objects.get(channel="webhook").payload
    assert (sent["team"], sent["task"], sent["workflow"], sent["session_id"]) == ("", None, None, None)
    assert sent["item"]["kind"] == "system"
    assert not inbox.team_items(world.team).exists()


def test_trouble_that_comes_back_later_is_told_again(settings: Any) -> None:
    settings.KANDEV_EMAIL = True
    staff = User.objects.create_user("root", email="root@example.org", is_staff=True)
    NotificationSettings.objects.create(user=staff, email=True)
    for _ in range(2):
        raise_for_deployment(notices.secret_key_notice())
        AttentionItem.objects.update(created_at=timezone.now() - timedelta(minutes=1))
        NotificationSettings.objects.update(last_email_at=None)
        delivery.plan_deliveries()
        delivery.plan_deliveries()
        update_troubles()
        AttentionItem.objects.update(resolved_at=timezone.now() - CAME_BACK_WITHIN)
    assert Delivery.objects.count() == 2


@pytest.mark.parametrize(("minutes", "told"), [(14, 1), (15, 0)])
def test_item_of_a_session_that_comes_back_at_once_is_not_told_again(minutes: int, told: int, world: World) -> None:
    session, notice = world.session(), notices.cancel_ignored_notice("a-run", "12:00")
    about = {"session": session, "task_id": session.task_id}
    item = open_item(notice, **about)
    assert item is not None
    row = Delivery.objects.create(channel="email", user=world.ada)
    DeliveredItem.objects.create(delivery=row, item=item, target="user:1")
    AttentionItem.objects.update(resolved_at=timezone.now() - timedelta(minutes=minutes))
    assert open_item(notice, **about) is not None
    assert item.told.count() == told


def test_hosts_of_one_name_have_one_item() -> None:
    for machine in ("a", "b"):
        host = Host.objects.create(name="build-1", machine=machine, first_seen_at=NOW)
        HostProcess.objects.create(
            host=host, place=machine, role="web", release="1", started_at=NOW, beat_at=timezone.now(), free_bytes=1
        )
    update_troubles()
    assert open_keys() == {"system:disk:build-1"}


def ends(row: HostProcess) -> None:
    HostProcess.objects.filter(id=row.id).update(ended_at=timezone.now())


def is_silent(row: HostProcess) -> None:
    HostProcess.objects.filter(id=row.id).update(beat_at=timezone.now() - timedelta(hours=1))


def is_lost(row: HostProcess) -> None:
    is_silent(row)
    HostMaintenance.objects.create(host=row.host, lost_at=timezone.now())


def test_backups_of_one_host_do_not_hide_that_those_of_another_fail() -> None:
    old_backup()
    reported("web", 5, name="build-2")
    record_backup("build-2", timezone.now(), "/backup/2")
    update_troubles()
    assert open_keys() == {"system:backup:build-1"}


@pytest.mark.parametrize(("change", "is_watched"), [(is_silent, True), (ends, False), (is_lost, False)])
def test_backup_of_a_host_counts_until_nothing_can_run_there(change: Any, is_watched: bool) -> None:
    reported("web", 5, name="build-2")
    record_backup("build-2", timezone.now(), "/backup/2")
    row = old_backup()
    change(row)
    update_troubles()
    assert open_keys() == ({"system:backup:build-1"} if is_watched else set())


@pytest.mark.parametrize(
    ("hours", "is_old"), [((36, 96), True), ((96, 36), True), ((96, 0), False), ((0, 36), True), ((0, 0), False)]
)
def test_shortest_age_that_a_running_process_was_told_counts_for_all(
    hours: tuple[int, int], is_old: bool, settings: Any
) -> None:
    """The backup is 72 hours old; whoever looks, and whatever it was told, finds the same."""
    old_backup()
    HostProcess.objects.update(process={"backup_max_age": hours[0] * 3600.0})
    reported("worker", 5, name="build-2", process={"backup_max_age": hours[1] * 3600.0})
    reported("worker", 6000, name="build-3", process={"backup_max_age": 60.0}, ended_at=timezone.now())
    for own in hours:
        settings.KANDEV_BACKUP_MAX_AGE = own * 3600.0
        update_troubles()
        assert open_keys() == ({"system:backup:build-1"} if is_old else set())
    assert AttentionItem.objects.count() == is_old, "raised once"


def test_sign_of_life_says_how_old_backups_may_be(settings: Any) -> None:
    settings.KANDEV_BACKUP_MAX_AGE = 7.0
    Heartbeat(Role.WEB).beat()
    settings.KANDEV_BACKUP_MAX_AGE = 9.0
    assert services.max_backup_age() == 7.0


@pytest.mark.parametrize(("change", "stays"), [(is_silent, True), (ends, True), (is_lost, False)])
def test_full_disk_stays_until_its_host_says_otherwise_or_is_lost(change: Any, stays: bool) -> None:
    row = full_disk()
    reported("web", 600, free_bytes=10**12)  # what it had left before
    update_troubles()
    change(row)
    update_troubles()
    assert open_keys() == ({"system:disk:build-1"} if stays else set())

    reported("web", 1, free_bytes=10**11)
    update_troubles()
    assert open_keys() == set()


def test_disk_of_a_host_that_is_no_longer_known_is_over() -> None:
    full_disk()
    update_troubles()
    Host.objects.all().delete()
    update_troubles()
    assert open_keys() == set()
