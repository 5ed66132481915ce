"""Counters count each event once, whichever process caused it, and never decrease."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from kandev import metrics
from kandev.metrics import CATALOGUE, collect_metrics
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import MetricCount, Prompt, TaskSession, operations, session_transaction, waits
from sessions_app.services.metric_counters import MetricsBuffer
from sessions_app.services.tasks import delete_session
from sessions_app.supervisor.interrupted_turns import interrupt_turn
from sessions_app.supervisor.outcomes import StartFailure, write_start_failure
from tests.supervisor.rows import MINE, change, execution_of, make_session, running_session

pytestmark = pytest.mark.django_db


def shown(name: str) -> dict[Any, float]:
    """Return samples at ``/metrics`` by label values, in the order of the label names."""
    told = metrics.render_metrics(collect_metrics()).decode()
    families = text_string_to_metric_families(told)
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
        waits.mint_token(transaction, transaction.open_run, WaitKind.EXTERNAL, "w1")
        waits.mint_token(transaction, transaction.open_run, WaitKind.EXTERNAL, "w2")
        waits.revoke_tokens(transaction, "rotated", wait_id="w1")
    with session_transaction(session.id, MINE) as transaction:
        interrupt_turn(transaction, "agentctl_gone")
    Prompt.objects.filter(session=session, kind="continue").update(journal_epoch="e")
    return session


COUNTED: Mapping[str, dict[Any, float]] = {
    "kandev_resumes_total": {("demo", "resumed"): 1},
    "kandev_runs_interrupted_total": {("agentctl_gone",): 1},
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

    change(execution_of(session), status="stopped")
    session.intents.filter(done_at=None).update(done_at=timezone.now())
    delete_session(TaskSession.objects.get(id=session.id))
    assert not TaskSession.objects.exists()
    assert {name: shown(name) for name in before} == before
    buckets = shown("kandev_resume_duration_seconds_bucket")
    assert (buckets["2",], buckets["5",], buckets["+Inf",]) == (0, 1, 1)


def test_counts_of_deleted_sessions_and_of_others_are_one_series() -> None:
    deleted, _ = busy_session(), busy_session()
    change(execution_of(deleted), status="stopped")
    deleted.intents.filter(done_at=None).update(done_at=timezone.now())
    delete_session(TaskSession.objects.get(id=deleted.id))
    assert shown("kandev_resumes_total") == {("demo", "resumed"): 2}


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


def test_measurements_of_two_supervisors_are_added_up() -> None:
    one, other = MetricsBuffer(), MetricsBuffer()
    one.swept("reconcile", 0.2, [("local_standalone", "alive"), ("local_standalone", "dead")])
    other.swept("boot", 70.0, [("local_standalone", "alive")])
    other.written(time.time() - 3)
    other.written(time.time() + 60)  # the clock was set back
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
        operations.add_counts([("kandev_sweep_executors_total", {"runtime": "remote", "observed": "dead"}, 2)], part)
    before = operations.read_totals()
    assert operations.fold_counts() == 0
    MetricCount.objects.update(updated_at=timezone.now() - timedelta(hours=2))
    assert operations.fold_counts() == 2
    assert operations.read_totals() == before
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
