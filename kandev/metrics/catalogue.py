"""The catalogue of metrics: name, kind, labels and meaning. Only these are exposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sessions_app.services.metric_counters import BUCKETS, RESUME_BUCKETS

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

    @property
    def series(self) -> frozenset[str]:
        """The names of its series, as used in queries."""
        if self.kind == "histogram":
            return frozenset({f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum"})
        return frozenset({self.name})


DATABASE_UP: Final = Metric("kandev_database_up", "gauge", "1 while the database answers; 0, and nothing else, else.")
_METRICS: Final = (
    DATABASE_UP,
    Metric(
        "kandev_sweep_duration_seconds",
        "histogram",
        "How long the passes of the sweep took, whatever began them.",
        buckets=BUCKETS["kandev_sweep_duration_seconds"],
    ),
    Metric(
        "kandev_sweep_executors_total",
        "counter",
        "Executions that sweeps looked at, by what they saw: alive, dead, unknown.",
        ("runtime", "observed"),
    ),
    Metric(
        "kandev_resumes_total",
        "counter",
        "Receipts: how starts and take-overs ended.",
        ("kind", "agent_type"),
    ),
    Metric(
        "kandev_resume_duration_seconds",
        "histogram",
        "From the order of a start to an agent that is up, waits for capacity included.",
        buckets=RESUME_BUCKETS,
    ),
    Metric(
        "kandev_reconciler_sessions_restarted_total",
        "counter",
        "Agents that were brought up without anybody asking.",
    ),
    Metric(
        "kandev_reconciler_continue_prompts_sent_total",
        "counter",
        "Continue prompts that went to an agent.",
    ),
    Metric(
        "kandev_reconciler_reconcile_duration_seconds",
        "histogram",
        "How long the passes of the loop took.",
        buckets=BUCKETS["kandev_reconciler_reconcile_duration_seconds"],
    ),
    Metric("kandev_reconciler_given_up_total", "counter", "Sessions that were given up after too many starts."),
    Metric("kandev_events_ingested_total", "counter", "Lines that the logs of sessions have got."),
    Metric(
        "kandev_event_lag_seconds",
        "histogram",
        "From what an agent said to its line in the log, of the oldest line of each batch.",
        buckets=BUCKETS["kandev_event_lag_seconds"],
    ),
    Metric(
        "kandev_workspace_transfer_outages_total",
        "counter",
        "How often the transfer of a workspace's work began to fail, once for each outage.",
        ("runtime",),
    ),
    Metric("kandev_leases_held", "gauge", "Executions that a supervisor holds now."),
    Metric("kandev_runs_interrupted_total", "counter", "Turns and waits that were cut short.", ("reason",)),
    Metric(
        "kandev_tokens_total",
        "counter",
        "Keys of waits by what became of them: minted, consumed, revoked, expired.",
        ("transition",),
    ),
    Metric("kandev_sessions", "gauge", "Sessions by their state.", ("state",)),
    Metric("kandev_session_errors", "gauge", "Sessions that show an error now, by its code.", ("code",)),
    Metric("kandev_executions", "gauge", "Executions by runtime and status.", ("runtime", "status")),
    Metric("kandev_prompts", "gauge", "Prompts that nobody has settled: queued, sending, held …", ("state",)),
    Metric("kandev_supervisors", "gauge", "Supervisors that live."),
    Metric("kandev_supervisors_swept", "gauge", "Supervisors that live and whose first sweep is over."),
    Metric("kandev_worker_queue", "gauge", "Tasks that wait for a worker."),
    Metric(
        "kandev_orphans", "gauge", "What carries our marks and belongs to no session, at the last look.", ("runtime",)
    ),
    Metric(
        "kandev_maintenance_last_success_timestamp_seconds",
        "gauge",
        "When each chore of the maintenance last ended well.",
        ("chore",),
    ),
    Metric(
        "kandev_maintenance_failing",
        "gauge",
        "1 where a chore's last run went wrong, or left something undone.",
        ("chore",),
    ),
    Metric("kandev_maintenance_removed_total", "counter", "What each chore has removed.", ("chore",)),
)
CATALOGUE: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _METRICS}
