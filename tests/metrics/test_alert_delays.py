"""Every alert fires once its cause has lasted for its delay, and not before: proven by ``promtool test rules``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.metrics.test_alert_rules import EXAMPLES, alerts, rules
from tests.services import require

RULES: Final = EXAMPLES / "alerts.yaml"
BEGINS: Final = 7 * 60
"""Minute at which the cause of each alert begins, after seven hours in which all was well."""
LASTS: Final = 2 * 24 * 60

Series = tuple[str, str, str]
"""A series, how it goes on while all is well, and how from ``BEGINS`` on; as promtool writes them."""
Case = tuple[int, int, tuple[Series, ...]]
"""Minutes after ``BEGINS`` at which the alert does not fire yet and at which it does, and what it is about."""


def gauge(series: str, well: float, bad: float) -> Series:
    return series, f"{well:g}x{BEGINS - 1}", f"{bad:g}x{LASTS}"


def counter(series: str, well: float, bad: float) -> Series:
    """A counter that grows by ``well`` a minute, and from then on by ``bad``."""
    return series, f"0+{well:g}x{BEGINS - 1}", f"{well * BEGINS:g}+{bad:g}x{LASTS}"


def histogram(name: str, le: str, well: float, bad: float, total: float = 10) -> tuple[Series, ...]:
    """A histogram whose bucket ``le`` gets ``well`` of ``total`` values a minute, and from then on ``bad``."""
    return (
        counter(f'{name}_bucket{{le="{le}"}}', well, bad),
        counter(f'{name}_bucket{{le="600"}}', total, total),
        counter(f'{name}_bucket{{le="+Inf"}}', total, total),
        counter(f"{name}_count", total, total),
    )


RESUMES: Final = "kandev_resume_duration_seconds"
LAG: Final = "kandev_event_lag_seconds"


def starts_fail(share: float) -> tuple[Series, ...]:
    """A hundred starts a minute, of which a share fails."""
    return (
        counter('kandev_resumes_total{kind="failed", agent_type="codex"}', 0, 100 * share),
        counter('kandev_resumes_total{kind="resumed", agent_type="codex"}', 100, 100 * (1 - share)),
    )


CASES: Final[Mapping[str, Case]] = {
    "KandevDown": (1, 3, (gauge('up{job="kandev"}', 1, 0),)),
    "KandevDatabaseAway": (1, 3, (gauge("kandev_database_up", 1, 0),)),
    "KandevNoSupervisor": (1, 3, (gauge("kandev_supervisors", 1, 0),)),
    "KandevNotSwept": (4, 6, (gauge("kandev_supervisors", 1, 1), gauge("kandev_supervisors_swept", 1, 0))),
    "KandevSessionGivenUp": (0, 2, (counter("kandev_reconciler_given_up_total", 0, 1),)),
    "KandevRestartStorm": (10, 22, (counter("kandev_reconciler_sessions_restarted_total", 0, 8),)),
    "KandevStartsFail": (10, 20, starts_fail(0.9)),
    "KandevResumesSlow": (29, 75, histogram(RESUMES, "120", 10, 0)),
    "KandevUnreachable": (9, 11, (gauge('kandev_session_errors{code="unreachable"}', 0, 2),)),
    "KandevAgentDiskFull": (-1, 1, (gauge('kandev_session_errors{code="disk_full"}', 0, 1),)),
    "KandevRunsInterrupted": (5, 20, (counter('kandev_runs_interrupted_total{reason="agent_exited"}', 0, 1),)),
    "KandevPromptsHeld": (59, 61, (gauge('kandev_prompts{state="held"}', 0, 1),)),
    "KandevEventLag": (9, 30, histogram(LAG, "5", 10, 0)),
    "KandevSweepsSlow": (29, 75, histogram("kandev_reconciler_reconcile_duration_seconds", "20", 10, 0)),
    "KandevWorkerStuck": (14, 16, (gauge("kandev_worker_queue", 3, 60),)),
    "KandevMaintenanceFailing": (179, 181, (gauge('kandev_maintenance_failing{chore="orphans"}', 0, 1),)),
    "KandevSessionDelayed": (
        2,
        15,
        (counter("kandev_ingest_delayed_total", 0, 3), counter('kandev_database_calls_slow_total{thread="hub"}', 0, 0)),
    ),
    "KandevTransfersFail": (
        0,
        2,
        (counter('kandev_workspace_transfer_outages_total{runtime="remote_docker"}', 0, 1),),
    ),
    "KandevOrphans": (1439, 1441, (gauge('kandev_orphans{runtime="local_docker"}', 0, 2),)),
    "KandevWorkerMissing": (4, 6, (gauge('kandev_processes{role="worker", state="up"}', 1, 0),)),
    "KandevSchedulesLate": (4, 6, (gauge("kandev_schedule_lag_seconds", 20, 700),)),
    # One is begun at the beginning, and none afterwards: 36 hours later it is too old.
    "KandevBackupOld": (
        36 * 60 - BEGINS + 9,
        36 * 60 - BEGINS + 12,
        (gauge("kandev_last_backup_timestamp_seconds", 0, 0),),
    ),
    # Those of another host do not count for it.
    "KandevHostBackupOld": (
        36 * 60 - BEGINS + 9,
        36 * 60 - BEGINS + 12,
        (gauge('kandev_host_last_backup_timestamp_seconds{host="one"}', 0, 0),),
    ),
    "KandevHostUnattended": (1, 3, (gauge("kandev_unattended_hosts", 0, 1),)),
    "KandevDataLarge": (119, 121, (gauge('kandev_data_bytes{what="journals", host="one"}', 1e9, 6e10),)),
    "KandevHostDiskLow": (9, 11, (gauge('kandev_host_free_bytes{host="one"}', 1e11, 1e9),)),
    "KandevJournalGap": (0, 2, (counter('kandev_journal_gaps_total{cause="lines_missing"}', 0, 1),)),
    "KandevPromptsWait": (4, 6, (gauge("kandev_queued_prompt_oldest_age_seconds", 0, 1000),)),
    "KandevResumeBurnsFast": (2, 20, starts_fail(1)),
    "KandevResumeBurnsSlow": (14, 60, starts_fail(0.5)),
    "KandevRecoveryBurnsFast": (30, 60, histogram(RESUMES, "60", 10, 0)),
    "KandevRecoveryBurnsSlow": (60, 180, histogram(RESUMES, "60", 10, 0)),
    "KandevIngestBurnsFast": (2, 20, histogram(LAG, "5", 10, 0)),
    "KandevIngestBurnsSlow": (14, 60, histogram(LAG, "5", 10, 0)),
}
"""Each alert's cause, and when it is reported."""
BURNED_SLOWLY: Final = {
    "Resume": starts_fail(0.08),
    "Recovery": histogram(RESUMES, "60", 10, 6),
    "Ingest": histogram(LAG, "5", 10, 9.2),
}
"""Too much to go on for days, but no reason to wake anybody."""


def firing(alert: str, minute: int, count: int) -> dict[str, Any]:
    """Expect an alert to fire as often at a minute, or, with 0, not at all."""
    samples = [{"labels": "{}", "value": count}] if count else []
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    return {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}


def prove(alert: str, series: tuple[Series, ...], expected: list[dict[str, Any]], folder: Path) -> Path:
    """Write a test for promtool of one alert; with the other rules too, each test would take seconds."""
    rule = next(rule for rule in alerts() if rule["alert"] == alert)
    wanted = [each for each in rules() if each.get("record", "-") in rule["expr"].split()]
    of_alert, test = folder / f"{alert}.rules.json", folder / f"{alert}.json"
    of_alert.write_text(json.dumps({"groups": [{"name": "one", "rules": [*wanted, rule]}]}))
    rows = [{"series": name, "values": f"{well} {bad}"} for name, well, bad in series]
    about = {"interval": "1m", "input_series": rows, "promql_expr_test": expected}
    files = {"rule_files": [str(of_alert)], "evaluation_interval": "1m", "tests": [about]}
    test.write_text(json.dumps(files))
    return test


def run_promtool(tests: list[Path]) -> str:
    """Return what promtool finds wrong with the rules; nothing if all is as expected."""
    require("promtool")
    done = subprocess.run(["promtool", "test", "rules", *map(str, tests)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    by_the_clock = {"KandevMaintenanceStale"}
    assert {rule["alert"] for rule in alerts()} - by_the_clock == set(CASES)


def test_cases_respect_the_delays_of_the_rules() -> None:
    for rule in alerts():
        if rule["alert"] in CASES and rule.get("for", "").endswith("m"):
            quiet, fires, _series = CASES[rule["alert"]]
            assert quiet < fires
            assert fires > int(rule["for"][:-1])


def test_alerts_fire_after_their_delay_and_not_before(tmp_path: Path) -> None:
    tests = []
    for alert, (quiet, fires, series) in CASES.items():
        moments = [(BEGINS - 1, 0), (BEGINS + quiet, 0), (BEGINS + fires, 1)]
        tests.append(prove(alert, series, [firing(alert, minute, count) for minute, count in moments], tmp_path))
    assert run_promtool(tests) == ""


def test_chore_that_has_not_succeeded_for_a_day_is_reported(tmp_path: Path) -> None:
    series = gauge('kandev_maintenance_last_success_timestamp_seconds{chore="keys"}', 0, 0)
    moments = [firing("KandevMaintenanceStale", minute, count) for minute, count in ((1439, 0), (1442, 1))]
    assert run_promtool([prove("KandevMaintenanceStale", (series,), moments, tmp_path)]) == ""


def test_small_share_of_failures_is_reported_only_by_the_slow_burn(tmp_path: Path) -> None:
    tests = []
    for name, series in BURNED_SLOWLY.items():
        for speed, count in (("Fast", 0), ("Slow", 1)):
            alert = f"Kandev{name}Burns{speed}"
            tests.append(prove(alert, series, [firing(alert, BEGINS + 700, count)], tmp_path))
    assert run_promtool(tests) == ""


def test_promtool_reports_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    series = gauge("kandev_database_up", 1, 1)
    test = prove("KandevDatabaseAway", (series,), [firing("KandevDatabaseAway", BEGINS, 1)], tmp_path)
    assert "FAILED" in run_promtool([test])


def test_rules_are_valid() -> None:
    require("promtool")
    subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, check=True)
    assert all("summary" in rule["annotations"] for rule in alerts())
    assert yaml.safe_load(RULES.read_text())["groups"]
