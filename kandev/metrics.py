"""Metrics of a deployment for Prometheus: their catalogue, and the view at ``/metrics``. Only these are exposed.

They are read from the database, so every process on every host returns the same values, and a restart loses none.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.db import Error
from django.db.models import Count, F, Min
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from django_q.models import OrmQ
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from executors_app import __version__
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_types, runtimes
from executors_app.wire.executions import ExecutorStatus, Observed
from executors_app.wire.protocol import Code
from sessions_app.accounts.client_address import parse_client_address
from sessions_app.hosts import services as hosts
from sessions_app.hosts.rules.life_signs import Life
from sessions_app.hosts.schedules import schedule_lag
from sessions_app.kernel.database_errors import classify_error
from sessions_app.kernel.locking import one_snapshot
from sessions_app.kernel.rules.states import DesiredState, PromptState, SessionState
from sessions_app.maintenance.backups import newest_backup_at, newest_backups
from sessions_app.metrics import counters as metric_counters
from sessions_app.metrics import models as metric_counts
from sessions_app.metrics.counters import BUCKETS, RESUME_BUCKETS
from sessions_app.models import Chore, DataSize, Orphaned, Prompt, Supervisor, TaskSession
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.waits.reader import count_waits

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric at ``/metrics``; ``labels`` are in the order of the output."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets in seconds, without ``+Inf``."""


DATABASE_UP: Final = Metric("kandev_database_up", "gauge", "1 if the database is available, 0 (alone) if not.")
BUILD_INFO: Final = Metric("kandev_build_info", "gauge", "1, with the version of Kandev as a label.", ("version",))
_METRICS: Final = (
    DATABASE_UP,
    BUILD_INFO,
    Metric(
        "kandev_sweep_duration_seconds",
        "histogram",
        "Duration of sweeps, whatever triggered them.",
        buckets=BUCKETS["kandev_sweep_duration_seconds"],
    ),
    Metric(
        "kandev_sweep_executors_total",
        "counter",
        "Executions examined by sweeps, by runtime and observation: alive, dead or unknown.",
        ("runtime", "observed"),
    ),
    Metric(
        "kandev_resumes_total",
        "counter",
        "Receipts of starts and take-overs, by kind of continuity and agent type.",
        ("kind", "agent_type"),
    ),
    Metric(
        "kandev_resume_duration_seconds",
        "histogram",
        "Time from the death of an agent, else from the request for a start, until one is running, with all waits.",
        buckets=RESUME_BUCKETS,
    ),
    Metric("kandev_reconciler_sessions_restarted_total", "counter", "Agents that were restarted automatically."),
    Metric("kandev_reconciler_continue_prompts_sent_total", "counter", "Continue prompts that were sent to an agent."),
    Metric(
        "kandev_reconciler_reconcile_duration_seconds",
        "histogram",
        "Duration of the passes of the supervisor's loop.",
        buckets=BUCKETS["kandev_reconciler_reconcile_duration_seconds"],
    ),
    Metric("kandev_reconciler_given_up_total", "counter", "Sessions given up after too many failed starts."),
    Metric("kandev_events_ingested_total", "counter", "Events written to the logs of sessions."),
    Metric(
        "kandev_event_lag_seconds",
        "histogram",
        "Delay from an agent's output to its event in the log, for the oldest event of each batch.",
        buckets=BUCKETS["kandev_event_lag_seconds"],
    ),
    Metric(
        "kandev_database_calls_slow_total",
        "counter",
        "Calls of a supervisor that occupied one of its database threads for more than a second.",
        ("thread",),
    ),
    Metric(
        "kandev_ingest_delayed_total",
        "counter",
        "Times that one session's lines could not be written in time, so that it was delayed.",
    ),
    Metric(
        "kandev_workspace_transfer_outages_total",
        "counter",
        "Outages of workspace transfers, each counted once when it begins.",
        ("runtime",),
    ),
    Metric("kandev_leases_held", "gauge", "Executions whose lease is currently held by a supervisor."),
    Metric("kandev_runs_interrupted_total", "counter", "Interrupted turns and waits, by reason.", ("reason",)),
    Metric(
        "kandev_tokens_total",
        "counter",
        "Keys of waits that were minted, consumed, revoked or expired.",
        ("transition",),
    ),
    Metric("kandev_sessions", "gauge", "Sessions by state.", ("state",)),
    Metric("kandev_session_errors", "gauge", "Sessions that currently show an error, by error code.", ("code",)),
    Metric("kandev_executions", "gauge", "Executions by runtime and status.", ("runtime", "status")),
    Metric("kandev_prompts", "gauge", "Open prompts by state: queued, sending, held …", ("state",)),
    Metric("kandev_waits", "gauge", "Open waits by kind: permission, question, external …", ("wait",)),
    Metric(
        "kandev_wait_oldest_age_seconds",
        "gauge",
        "For how long the oldest open wait of each kind has been open; 0 without one.",
        ("wait",),
    ),
    Metric("kandev_supervisors", "gauge", "Supervisors that are alive."),
    Metric("kandev_supervisors_swept", "gauge", "Supervisors that are alive and have completed their first sweep."),
    Metric(
        "kandev_processes",
        "gauge",
        "Web servers, supervisors and workers by their last sign of life: up or silent.",
        ("role", "state"),
    ),
    Metric("kandev_unattended_hosts", "gauge", "Hosts with agents that only their own supervisor reaches, and none."),
    Metric(
        "kandev_host_free_bytes",
        "gauge",
        "What the disk of the data directory of each host had left when its processes last reported.",
        ("host",),
    ),
    Metric(
        "kandev_journal_gaps_total",
        "counter",
        "Gaps in what agents wrote: lines that were lost before they were in the log.",
        ("cause",),
    ),
    Metric(
        "kandev_queued_prompt_oldest_age_seconds",
        "gauge",
        "Age of the oldest queued prompt of a session that is to run and whose agent is not working; 0 without one.",
    ),
    Metric("kandev_host_sessions", "gauge", "Agents that only a supervisor of this host reaches.", ("host",)),
    Metric("kandev_host_load", "gauge", "Average load of a host during the last minute.", ("host",)),
    Metric(
        "kandev_host_open_files",
        "gauge",
        "Open files of the process of a host and role that has most.",
        ("host", "role"),
    ),
    Metric("kandev_host_max_open_files", "gauge", "How many files each such process may open.", ("host", "role")),
    Metric(
        "kandev_host_oldest_request_age_seconds",
        "gauge",
        "For how long the oldest request to sessions of a host has been waiting for its supervisor; 0 without one.",
        ("host",),
    ),
    Metric("kandev_schedule_lag_seconds", "gauge", "How late the most overdue schedule of the worker is."),
    Metric(
        "kandev_last_backup_timestamp_seconds",
        "gauge",
        "Unix time at which the newest recorded backup was begun; absent if none is known.",
    ),
    Metric(
        "kandev_host_last_backup_timestamp_seconds",
        "gauge",
        "Unix time at which the newest recorded backup of a host in use was begun; absent if none is known.",
        ("host",),
    ),
    Metric("kandev_worker_queue", "gauge", "Background jobs that are waiting for a worker."),
    Metric(
        "kandev_orphans", "gauge", "Orphaned processes, containers and files found by the last check.", ("runtime",)
    ),
    Metric(
        "kandev_maintenance_last_success_timestamp_seconds",
        "gauge",
        "Unix time at which each maintenance chore last succeeded.",
        ("chore",),
    ),
    Metric(
        "kandev_maintenance_failing",
        "gauge",
        "1 if a maintenance chore's last run failed or was incomplete.",
        ("chore",),
    ),
    Metric("kandev_maintenance_removed_total", "counter", "Items removed by each maintenance chore.", ("chore",)),
    Metric(
        "kandev_data_bytes",
        "gauge",
        "Disk space of each kind of data at the last hourly measurement; absent if it is unknown.",
        ("host", "what"),
    ),
)
CATALOGUE: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _METRICS}


OTHER_LABEL: Final = "other"
Sample = tuple[Mapping[str, str], float]
Readings = Mapping[str, list[Sample]]
"""Samples by the name of their series. A histogram has its sum and its buckets, which are not cumulative yet."""
KNOWN_REASONS: Final = frozenset(
    {
        "agent_exited",
        "agent_gone",
        "agentctl_gone",
        "out_of_memory",
        "wait_timeout",
        "stopped",
        "closed",
        "idle",
        "imported",
    }
)
"""Reasons for interrupted turns. Others are counted as ``OTHER_LABEL``, which bounds the number of series."""
GAP_CAUSES: Final = ("lines_missing", "new_epoch")
SLOW_THREADS: Final = ("ingest", "orders")
"""The threads of a supervisor that agents depend on. Others appear with their first slow call."""
PROMPT_STATES_COUNTED: Final = (
    PromptState.QUEUED,
    PromptState.SENDING,
    PromptState.ACCEPTED,
    PromptState.DELIVERED,
    PromptState.HELD,
)


def collect_metrics() -> Readings:
    """Read all metrics from the database, with 21 queries, and one for each kind of wait, whatever its size."""
    found: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    with one_snapshot():  # else a session that is deleted meanwhile would be counted twice
        counts = list(_collect_all())
    for name, labels, value in counts:
        found[name, tuple((label, _bounded_label(label, text)) for label, text in sorted(labels.items()))] += value
    samples: dict[str, list[Sample]] = {}
    for (name, pairs), value in found.items():
        samples.setdefault(name, []).append((dict(pairs), value))
    return samples


def _collect_all() -> Iterator[metric_counts.Count]:
    yield from _zero_readings()
    yield from metric_counters.read_counters()
    for name, numbers in metric_counts.read_totals().items():
        for labels, value in numbers:
            yield name, labels, value
    yield from _sessions()
    yield from _waits()
    yield from _executions()
    yield from _processes()
    yield from _maintenance_jobs()


def _zero_readings() -> Iterator[metric_counts.Count]:
    """Yield what is true of every deployment, and zeros for series that must exist from the beginning."""
    yield DATABASE_UP.name, {}, 1
    yield BUILD_INFO.name, {"version": __version__}, 1
    for metric in CATALOGUE.values():
        if metric.kind == "counter" and not metric.labels:
            yield metric.name, {}, 0
    # Prometheus sees no increase in a series that begins with its first event, or with thirty at once.
    for name, label, values in (
        ("kandev_journal_gaps_total", "cause", GAP_CAUSES),
        ("kandev_workspace_transfer_outages_total", "runtime", sorted(runtimes())),
        ("kandev_database_calls_slow_total", "thread", SLOW_THREADS),
        ("kandev_runs_interrupted_total", "reason", sorted(KNOWN_REASONS)),
    ):
        for value in values:
            yield name, {label: value}, 0
    for state in SessionState:
        yield "kandev_sessions", {"state": state}, 0
    for prompt in PROMPT_STATES_COUNTED:
        yield "kandev_prompts", {"state": prompt}, 0


def _sessions() -> Iterator[metric_counts.Count]:
    states = TaskSession.objects.order_by().values_list("state", "error_code").annotate(n=Count("*"))
    for state, code, number in states:
        yield "kandev_sessions", {"state": state}, number
        if code:
            yield "kandev_session_errors", {"code": code}, number
    yield "kandev_queued_prompt_oldest_age_seconds", {}, _oldest_prompt_age()
    open_ones = Prompt.objects.filter(state__in=PROMPT_STATES_COUNTED).order_by()
    for state, number in open_ones.values_list("state").annotate(n=Count("id")):
        yield "kandev_prompts", {"state": state}, number


def _oldest_prompt_age() -> float:
    """Return the seconds since the oldest prompt was queued that no turn is in the way of; 0 without one."""
    waiting = Prompt.objects.filter(
        state=PromptState.QUEUED,
        session__state=SessionState.WAITING_FOR_INPUT,
        session__desired_state=DesiredState.RUNNING,
    )
    oldest = waiting.aggregate(oldest=Min("created_at"))["oldest"]
    if oldest is None:
        return 0.0
    age: float = (timezone.now() - oldest).total_seconds()
    return max(age, 0.0)


def _waits() -> Iterator[metric_counts.Count]:
    now = timezone.now()
    for found in count_waits():
        labels = {"wait": found.kind}
        yield "kandev_waits", labels, found.count
        age = 0.0
        if found.oldest is not None:
            age = max((now - found.oldest).total_seconds(), 0.0)
        yield "kandev_wait_oldest_age_seconds", labels, age


def _executions() -> Iterator[metric_counts.Count]:
    rows = ExecutorRunning.objects.order_by().values_list("runtime", "status").annotate(n=Count("*"))
    for runtime, status, number in rows:
        yield "kandev_executions", {"runtime": runtime, "status": status}, number
    held = ExecutorRunning.objects.exclude(owner="").filter(lease_expires_at__gt=Now())
    yield "kandev_leases_held", {}, held.count()


def _processes() -> Iterator[metric_counts.Count]:
    alive = Supervisor.objects.alive().aggregate(n=Count("boot_id"), swept=Count("swept_at"))
    yield "kandev_supervisors", {}, alive["n"]
    yield "kandev_supervisors_swept", {}, alive["swept"]
    for (role, life), number in hosts.count_processes().items():
        yield "kandev_processes", {"role": role, "state": life}, number
    for name, free in hosts.free_bytes_by_host().items():
        yield "kandev_host_free_bytes", {"host": name}, free
    yield from _hosts()
    yield "kandev_schedule_lag_seconds", {}, schedule_lag().total_seconds()
    yield "kandev_worker_queue", {}, OrmQ.objects.count()


def _hosts() -> Iterator[metric_counts.Count]:
    reports = hosts.list_hosts()
    yield "kandev_unattended_hosts", {}, sum(report.is_unattended for report in reports)
    seen: set[str] = set()
    for report in reports:
        if report.host.name not in seen:  # of hosts with the same name, the one that reported last
            seen.add(report.host.name)
            yield from _host(report)


def _host(report: hosts.HostReport) -> Iterator[metric_counts.Count]:
    labels = {"host": report.host.name}
    yield "kandev_host_sessions", labels, report.sessions
    age = 0.0
    if report.oldest_request_at is not None:
        age = max((timezone.now() - report.oldest_request_at).total_seconds(), 0.0)
    yield "kandev_host_oldest_request_age_seconds", labels, age
    for role, row in report.fullest_processes().items():
        yield "kandev_host_open_files", {**labels, "role": role}, row.open_files or 0
        yield "kandev_host_max_open_files", {**labels, "role": role}, row.max_open_files or 0
    newest = report.newest_up
    if newest is None:
        return  # figures of the past are none of now
    if newest.load is not None:
        yield "kandev_host_load", labels, newest.load


def _maintenance_jobs() -> Iterator[metric_counts.Count]:
    for row in Chore.objects.all():
        labels = {"chore": row.name}
        yield "kandev_maintenance_failing", labels, bool(row.failed_at)
        if row.succeeded_at:
            yield "kandev_maintenance_last_success_timestamp_seconds", labels, row.succeeded_at.timestamp()
    newest = newest_backup_at()
    if newest is not None:
        yield "kandev_last_backup_timestamp_seconds", {}, newest.timestamp()
    for backup in newest_backups(hosts.hosts_in_use()):
        yield "kandev_host_last_backup_timestamp_seconds", {"host": backup.host}, backup.began_at.timestamp()
    for runtime, number in Orphaned.objects.order_by().values_list(F("runtime")).annotate(n=Count("id")):
        yield "kandev_orphans", {"runtime": runtime}, number
    for host, what, size in DataSize.objects.exclude(bytes=None).values_list("host", "what", "bytes"):
        yield "kandev_data_bytes", {"host": host, "what": what}, size or 0


def _bounded_label(label: str, text: str) -> str:
    known = _known_labels().get(label)
    if known is None or text in known:
        return text
    return OTHER_LABEL


def _known_labels() -> Mapping[str, Collection[str]]:
    """Return the allowed values of each label. Labels that are missing here only have values from our own code."""
    return {
        "agent_type": agent_types(),
        "code": {*map(str, Code), *OWN_ERROR_CODES},
        "kind": set(map(str, ReceiptKind)),
        "observed": set(map(str, Observed)),
        "reason": KNOWN_REASONS,
        "runtime": runtimes(),
        "state": {*map(str, SessionState), *map(str, PromptState), *map(str, Life)},
        "status": set(map(str, ExecutorStatus)),
    }


OWN_ERROR_CODES: Final[frozenset[Any]] = frozenset(
    {"unreachable", "worktree_missing", "not_resumable", "start_timeout", "internal_error", "launch_failed"}
)
"""Error codes of sessions that the control plane sets, not agentctl."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(readings: Readings) -> bytes:
    """Render every metric of the catalogue as text. Readings with other names are left out."""
    return _render_text(CATALOGUE.values(), readings)


def _render_text(metrics: Iterable[Metric], readings: Readings) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReadingsCollector(metrics, readings))
    return generate_latest(registry)


class _ReadingsCollector(Collector):
    def __init__(self, metrics: Iterable[Metric], readings: Readings):
        self._metrics, self._readings = metrics, readings

    def collect(self) -> Iterator[Family]:
        return (_metric_family(metric, self._readings) for metric in self._metrics)


def _metric_family(metric: Metric, readings: Readings) -> Family:
    if metric.kind == "histogram":
        return _cumulative_histogram(metric, readings)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    samples = sorted(readings.get(metric.name, ()), key=lambda sample: sorted(sample[0].items()))
    for labels, value in samples:
        family.add_metric([labels.get(name, "") for name in metric.labels], value)
    return family


def _cumulative_histogram(metric: Metric, readings: Readings) -> Family:
    """Return a histogram with cumulative buckets, as Prometheus expects, from separately counted ones."""
    apart: Mapping[str, float] = {labels["le"]: value for labels, value in readings.get(f"{metric.name}_bucket", ())}
    edges = [*(f"{edge:g}" for edge in metric.buckets), "+Inf"]
    below, buckets = 0.0, []
    for edge in edges:
        below += apart.get(edge, 0)
        buckets.append((edge, below))
    sums = readings.get(f"{metric.name}_sum", ())
    family = HistogramMetricFamily(metric.name, metric.help)
    family.add_metric([], buckets, sum(value for _, value in sums))
    return family


CACHE_SECONDS: Final = 5
"""Seconds for which a response is cached, so that frequent scrapes cause no load."""
_FORWARDING_HEADERS: Final = (
    "HTTP_X_FORWARDED_FOR",
    "HTTP_FORWARDED",
    "HTTP_X_REAL_IP",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_VIA",
)
"""Headers that proxies add. Behind a proxy on this machine, every client would have a loopback address."""


@login_not_required
@never_cache
@require_safe
def metrics_view(request: HttpRequest) -> HttpResponse:
    """Return the metrics; 401 without the configured token, or 403 for another machine if none is configured.

    Without a database the status is 200, too, so that monitoring does not mistake a database outage for a dead web
    process.
    """
    if settings.KANDEV_METRICS_TOKEN:
        if not _has_valid_token(request):
            answer = HttpResponse("A valid metrics token is required.\n", status=401, content_type="text/plain")
            answer["WWW-Authenticate"] = 'Bearer realm="metrics"'
            return answer
    elif not _is_local_request(request):
        explanation = "Set KANDEV_METRICS_TOKEN to read the metrics from other machines.\n"
        return HttpResponse(explanation, status=403, content_type="text/plain")
    try:
        text = cache.get_or_set("kandev-metrics", lambda: render_metrics(collect_metrics()), CACHE_SECONDS)
    except Error as error:
        if classify_error(error) is None:
            raise
        # Only that: zeros for other metrics would look like counters that were reset.
        text = _render_text([DATABASE_UP], {DATABASE_UP.name: [({}, 0)]})
    return HttpResponse(text, content_type=CONTENT_TYPE)


def _has_valid_token(request: HttpRequest) -> bool:
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    wanted = settings.KANDEV_METRICS_TOKEN.encode()
    return scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), wanted)


def _is_local_request(request: HttpRequest) -> bool:
    """Return whether the client is on this machine and no proxy is in between. Headers can only disprove it."""
    if any(name in request.META for name in _FORWARDING_HEADERS):
        return False
    address = parse_client_address(request.META.get("REMOTE_ADDR", ""))
    return address is not None and address.is_loopback
