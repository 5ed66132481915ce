"""Counters count each event once, whichever process caused it, and never decrease."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from kandev import metrics
from kandev.metrics import CATALOGUE, KNOWN_REASONS, collect_metrics
from sessions_app.board.services.tasks import delete_session
from sessions_app.metrics import counters as metric_counters
from sessions_app.metrics import models as metric_counts
from sessions_app.metrics.counters import MetricsBuffer
from sessions_app.models import MetricCount, Prompt, TaskSession, session_transaction
from sessions_app.starts.outcomes import StartFailure, write_start_failure
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.waits.models import mint_wait_key, revoke_wait_keys
from sessions_app.waits.rules.wait_keys import WaitKind
from tests.supervisor.rows import MINE, change, execution_of, make_session, running_session

pytestmark = pytest.mark.django_db


def shown(name: str) -> dict[Any, float]:
    """Return samples at ``/metrics`` by label values, in the order of the label names."""
    exposition = metrics.render_metrics(collect_metrics()).decode()
    families = text_string_to_metric_families(exposition)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    values = {tuple(sample.labels.values()): sample.value for sample in samples}
    assert len(values) == len(samples), "a series appears twice"
    return values


def busy_session() -> TaskSession:
    """Return a session with a receipt, an automatic start, keys, and an interrupted turn."""
    session = running_session("Begin", work_state="working", state="RUNNING")
    began = timezone.now() - timedelta(seconds=7)
    session.intents.update(by=None, outcome="resumed", created_at=began, done_at=began + timedelta(seconds=3))
    prompt = session.prompts.get()
    with session_transaction(session.id, MINE) as transaction:
        transaction.write_receipt("resumed", "pending")
        transaction.move_prompt(prompt, "send", journal_epoch="e", execution_id="x")
        transaction.move_prompt(prompt, "accept")
        transaction.move_prompt(prompt, "deliver")
        transaction.start_run(prompt.message_id)
        mint_wait_key(transaction, transaction.open_run, WaitKind.EXTERNAL, "w1")
        mint_wait_key(transaction, transaction.open_run, WaitKind.EXTERNAL, "w2")
        revoke_wait_keys(transaction, "rotated", wait_id="w1")
    with session_transaction(session.id, MINE) as transaction:
        interrupt_turn(transaction, "agentctl_gone")
    Prompt.objects.filter(session=session, kind="continue").update(journal_epoch="e")
    return session


def delete(session: TaskSession) -> None:
    """Delete a session as a user can once it has stopped."""
    change(execution_of(session), status="stopped")
    session.intents.filter(done_at=None).update(done_at=timezone.now())
    delete_session(TaskSession.objects.get(id=session.id))


COUNTED: Mapping[str, dict[Any, float]] = {
    "kandev_resumes_total": {("demo", "resumed"): 1},
    "kandev_runs_interrupted_total": {(reason,): float(reason == "agentctl_gone") for reason in KNOWN_REASONS},
    "kandev_reconciler_sessions_restarted_total": {(): 1},
    "kandev_reconciler_continue_prompts_sent_total": {(): 1},
    "kandev_resume_duration_seconds_count": {(): 1},
    "kandev_resume_duration_seconds_sum": {(): 3},
}


def test_counters_keep_their_value_after_the_session_is_deleted() -> None:
    session = busy_session()
    before = {name: shown(name) for name in CATALOGUE if CATALOGUE[name].kind == "counter"}
    assert {name: shown(name) for name in COUNTED} == COUNTED
    assert shown("kandev_tokens_total")["minted",] == 2
    assert shown("kandev_events_ingested_total")[()] == session.events.count() > 5

    delete(session)
    assert not TaskSession.objects.exists()
    assert {name: shown(name) for name in before} == before
    buckets = shown("kandev_resume_duration_seconds_bucket")
    assert (buckets["2",], buckets["5",], buckets["+Inf",]) == (0, 1, 1)


def test_counts_of_deleted_sessions_and_of_others_are_one_series() -> None:
    deleted, _ = busy_session(), busy_session()
    delete(deleted)
    assert shown("kandev_resumes_total") == {("demo", "resumed"): 2}


@pytest.mark.django_db(transaction=True)
def test_session_that_is_deleted_while_the_metrics_are_read_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session, read_totals = busy_session(), metric_counts.read_totals
    before = {name: shown(name) for name in COUNTED}

    def delete_and_disconnect() -> None:
        delete(session)
        connection.close()

    def read_after_the_deletion() -> object:
        with ThreadPoolExecutor(1) as other:
            other.submit(delete_and_disconnect).result()
        return read_totals()

    with monkeypatch.context() as patch:
        patch.setattr(metric_counts, "read_totals", read_after_the_deletion)
        assert shown("kandev_resumes_total") == before["kandev_resumes_total"]
    assert not TaskSession.objects.exists()
    assert {name: shown(name) for name in COUNTED} == before


def test_storing_what_is_counted_changes_no_counter() -> None:
    stored = busy_session()
    assert metric_counters.store_values(10) == 2
    busy_session()
    before = {name: shown(name) for name in CATALOGUE if CATALOGUE[name].kind == "counter"}
    assert before["kandev_resumes_total"] == {("demo", "resumed"): 2}
    assert shown("kandev_resume_duration_seconds_count") == {(): 2}
    assert metric_counters.store_values(1) == 2
    assert metric_counters.store_values(10) == 0
    delete(stored)
    assert {name: shown(name) for name in before} == before
    assert shown("kandev_resume_duration_seconds_count") == {(): 2}


@pytest.mark.parametrize("is_stored", [False, True], ids=["computed", "stored"])
@pytest.mark.parametrize(("seconds", "bucket"), [(0.5, "0.5"), (0.501, "1"), (600, "600"), (601, "+Inf")])
def test_duration_of_a_start_is_in_the_bucket_whose_bound_it_does_not_exceed(
    seconds: float, bucket: str, is_stored: bool
) -> None:
    session = make_session()
    began = timezone.now() - timedelta(hours=1)
    session.intents.update(outcome="fresh", created_at=began, done_at=began + timedelta(seconds=seconds))
    if is_stored:
        assert metric_counters.store_values(10) == 1
    counted = {labels[0]: value for labels, value in shown("kandev_resume_duration_seconds_bucket").items()}
    assert next(name for name, value in counted.items() if value) == bucket
    assert shown("kandev_resume_duration_seconds_sum") == {(): pytest.approx(seconds)}


@pytest.mark.parametrize("is_stored", [False, True], ids=["computed", "stored"])
@pytest.mark.parametrize(("died", "seconds"), [(-20, 23), (0.5, 3), (None, 3)], ids=str)
def test_restart_takes_from_the_death_of_the_agent(died: float | None, seconds: float, is_stored: bool) -> None:
    session = make_session()
    asked = timezone.now() - timedelta(hours=1)
    died_at = None if died is None else asked + timedelta(seconds=died)
    session.intents.update(
        outcome="resumed", created_at=asked, agent_died_at=died_at, done_at=asked + timedelta(seconds=3)
    )
    if is_stored:
        assert metric_counters.store_values(10) == 1
    assert shown("kandev_resume_duration_seconds_sum") == {(): pytest.approx(seconds)}


def test_failed_start_has_no_duration() -> None:
    session = make_session()
    session.intents.update(outcome="spawn_failed", done_at=timezone.now())
    assert metric_counters.store_values(10) == 0
    assert shown("kandev_resume_duration_seconds_count") == {(): 0}


def test_giving_up_counts_once_and_not_after_a_rollback(settings: Any) -> None:
    settings.KANDEV_MAX_RESTARTS = 1
    session = make_session(start_attempts=5, state="STARTING")
    change(execution_of(session), owner=MINE.owner, generation=MINE.generation)
    order = session.intents.get()
    write_start_failure(session.id, order.id, MINE, StartFailure("spawn_failed", "No such program"))
    write_start_failure(session.id, order.id, MINE, StartFailure("spawn_failed", "No such program"))
    assert shown("kandev_reconciler_given_up_total") == {(): 1}
    other = make_session(state="STARTING")
    with pytest.raises(RuntimeError), session_transaction(other.id) as transaction:
        transaction.move_session("give_up")
        raise RuntimeError
    assert shown("kandev_reconciler_given_up_total") == {(): 1}


def test_measurements_of_two_supervisors_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = MetricsBuffer(), MetricsBuffer()
    one.swept("reconcile", 0.2, [("local_standalone", "alive"), ("local_standalone", "dead")])
    other.swept("boot", 70.0, [("local_standalone", "alive")])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    other.written(now - 3)
    other.written(now + 60)  # the clock was set back
    one.flush("one")
    other.flush("other")
    one.flush("one")
    assert shown("kandev_sweep_duration_seconds_bucket")["0.25",] == 1
    assert shown("kandev_sweep_duration_seconds_count") == {(): 2}
    assert shown("kandev_sweep_duration_seconds_sum")[()] == pytest.approx(70.2)
    assert shown("kandev_reconciler_reconcile_duration_seconds_count") == {(): 1}
    seen = shown("kandev_sweep_executors_total")
    assert seen == {("alive", "local_standalone"): 2, ("dead", "local_standalone"): 1}
    lag = shown("kandev_event_lag_seconds_bucket")
    assert (lag["0.01",], lag["2.5",], lag["5",], lag["+Inf",]) == (1, 1, 2, 2)


def test_folding_parts_changes_no_total() -> None:
    for part in ("one", "other", ""):
        metric_counts.add_counts([("kandev_sweep_executors_total", {"runtime": "remote", "observed": "dead"}, 2)], part)
    before = metric_counts.read_totals()
    assert metric_counts.fold_counts() == 0
    MetricCount.objects.update(updated_at=timezone.now() - timedelta(hours=2))
    assert metric_counts.fold_counts() == 2
    assert metric_counts.read_totals() == before
    assert MetricCount.objects.count() == 1


def test_failed_write_is_retried_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = MetricsBuffer()
    tally.count("kandev_sweep_executors_total", runtime="remote", observed="dead")
    with monkeypatch.context() as broken:
        broken.setattr(connection, "cursor", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tally.flush("me")
    tally.flush("me")
    assert shown("kandev_sweep_executors_total") == {("dead", "remote"): 1}
