"""Access to ``/metrics``, and its content."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from kandev import metrics
from kandev.metrics import CATALOGUE, collect_metrics
from sessions_app.models import Host, HostProcess, Prompt, Supervisor
from tests.supervisor.rows import change, execution_of, make_session, running_session

pytestmark = pytest.mark.django_db
TOKEN = "t0ken-of-the-metrics"


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    cache.clear()


def text() -> str:
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    return str(answer.content.decode())


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(name: str, **labels: str) -> float | None:
    return samples().get((name, tuple(sorted(labels.items()))))


@pytest.mark.parametrize(
    ("token", "request_", "status"),
    [
        ("", {"REMOTE_ADDR": "127.0.0.1"}, 200),
        ("", {"REMOTE_ADDR": "::1"}, 200),
        ("", {"REMOTE_ADDR": "::ffff:127.0.0.1"}, 200),
        ("", {"REMOTE_ADDR": "10.0.0.7"}, 403),
        ("", {"REMOTE_ADDR": ""}, 403),
        ("", {"REMOTE_ADDR": "10.0.0.7", "HTTP_X_FORWARDED_FOR": "127.0.0.1"}, 403),
        ("", {"REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "10.0.0.7"}, 403),
        ("", {"REMOTE_ADDR": "127.0.0.1", "HTTP_FORWARDED": "for=10.0.0.7"}, 403),
        ("", {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "evil.example"}, 400),
        (TOKEN, {"REMOTE_ADDR": "127.0.0.1"}, 401),
        (TOKEN, {"HTTP_AUTHORIZATION": "Bearer wrong"}, 401),
        (TOKEN, {"HTTP_AUTHORIZATION": f"Token {TOKEN}"}, 401),
        (TOKEN, {"HTTP_AUTHORIZATION": "Bearer ümlaut"}, 401),
        (TOKEN, {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}", "REMOTE_ADDR": "10.0.0.7"}, 200),
        (TOKEN, {"HTTP_AUTHORIZATION": f"bearer {TOKEN}", "HTTP_X_FORWARDED_FOR": "10.0.0.7"}, 200),
        (TOKEN, {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}", "HTTP_HOST": "evil.example"}, 400),
    ],
)
def test_metrics_require_the_token_or_a_local_caller(
    token: str, request_: dict[str, str], status: int, settings: Any
) -> None:
    settings.KANDEV_METRICS_TOKEN = token
    answer = Client().get("/metrics", **request_)  # type: ignore[arg-type]
    assert answer.status_code == status
    assert (b"kandev_sessions" in answer.content) == (status == 200)
    if status == 401:
        assert answer["WWW-Authenticate"].startswith("Bearer")


def test_every_catalogued_metric_is_exported_with_its_type() -> None:
    exposition = text()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exposition, re.MULTILINE))
    assert kinds == {name: metric.kind for name, metric in CATALOGUE.items()}
    assert exposition.count("# HELP ") == len(CATALOGUE)


@pytest.mark.parametrize(
    "series",
    [
        ("kandev_journal_gaps_total", "cause", "new_epoch"),
        ("kandev_journal_gaps_total", "cause", "lines_missing"),
        ("kandev_workspace_transfer_outages_total", "runtime", "remote_docker"),
        ("kandev_database_calls_slow_total", "thread", "ingest"),
        ("kandev_runs_interrupted_total", "reason", "out_of_memory"),
    ],
    ids="-".join,
)
def test_series_of_an_alert_exists_before_its_first_event_so_that_this_one_is_an_increase(
    series: tuple[str, str, str],
) -> None:
    assert samples().get((series[0], (series[1:],))) == 0


def test_query_count_does_not_grow_with_sessions(django_assert_num_queries: Any) -> None:
    running_session("Begin")
    with django_assert_num_queries(31):
        collect_metrics()
    for _ in range(5):
        running_session("Begin")
        make_session("Later")
    with django_assert_num_queries(31):
        collect_metrics()


def test_second_scrape_within_seconds_makes_no_queries(django_assert_num_queries: Any) -> None:
    text()
    with django_assert_num_queries(0):
        text()


def test_gauges_show_the_present_rows() -> None:
    one, other = running_session(), running_session()
    make_session("Waits")
    change(other, state="ERROR", error_code="disk_full")
    now = timezone.now()
    change(execution_of(other), lease_expires_at=now - timedelta(seconds=1))
    Supervisor.objects.create(boot_id="b", host_id="h", started_at=now, beat_at=now, swept_at=now)
    found = samples()
    assert found["kandev_sessions", (("state", "WAITING_FOR_INPUT"),)] == 1
    assert found["kandev_sessions", (("state", "ERROR"),)] == 1
    assert found["kandev_sessions", (("state", "CANCELLED"),)] == 0
    assert found["kandev_session_errors", (("code", "disk_full"),)] == 1
    assert found["kandev_executions", (("runtime", "local_standalone"), ("status", "ready"))] == 2
    assert found["kandev_leases_held", ()] == 1
    assert found["kandev_prompts", (("state", "queued"),)] == 1
    assert (found["kandev_supervisors", ()], found["kandev_supervisors_swept", ()]) == (1, 1)
    assert one.id != other.id


def test_agent_text_never_becomes_a_label() -> None:
    session = running_session()
    change(session, error_code="weird_1234")
    session.receipts.create(kind="resumed")
    change(session.agent_profile, agent_type="gone_type")
    found = samples()
    assert found["kandev_session_errors", (("code", "other"),)] == 1
    assert found["kandev_resumes_total", (("agent_type", "other"), ("kind", "resumed"))] == 1


def test_database_outage_is_distinguished_from_a_web_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(metrics, "collect_metrics", away)
    assert value("kandev_database_up") == 0
    assert {name for name, _ in samples()} == {"kandev_database_up"}, "no count falls to 0"
    monkeypatch.undo()
    assert value("kandev_database_up") == 1


def test_processes_and_disks_of_hosts_are_shown_by_role_state_and_host() -> None:
    now = timezone.now()
    for name, free in (("one", 5_000), ("two", 7_000)):
        host = Host.objects.create(name=name, first_seen_at=now)
        for role in ("web", "worker"):
            HostProcess.objects.create(
                host=host, place="p", role=role, release="1", started_at=now, beat_at=now, free_bytes=free
            )
    HostProcess.objects.filter(host__name="two", role="worker").update(beat_at=now - timedelta(hours=1), free_bytes=1)
    assert value("kandev_processes", role="worker", state="up") == 1
    assert value("kandev_processes", role="worker", state="silent") == 1
    assert (value("kandev_host_free_bytes", host="one"), value("kandev_host_free_bytes", host="two")) == (5_000, 7_000)


@pytest.mark.parametrize(
    ("state", "desired", "waits"),
    [("WAITING_FOR_INPUT", "running", True), ("RUNNING", "running", False), ("WAITING_FOR_INPUT", "stopped", False)],
)
def test_age_of_a_prompt_counts_while_nothing_is_in_its_way(state: str, desired: str, waits: bool) -> None:
    session = make_session("Waits")
    change(session, state=state, desired_state=desired)
    Prompt.objects.update(created_at=timezone.now() - timedelta(minutes=20))
    age = value("kandev_queued_prompt_oldest_age_seconds")
    assert age is not None
    assert (age >= 1200) == waits
