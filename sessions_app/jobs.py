"""The jobs of the supervisor, in the order in which they start; each is declared in the ``jobs`` of its topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sessions_app.agents.jobs import AgentSetupJob
from sessions_app.finish.jobs import FinishJob
from sessions_app.hosts.jobs import HeartbeatJob, MaintenanceJob
from sessions_app.metrics.jobs import MetricsJob
from sessions_app.placement.jobs import PlacementJob
from sessions_app.portable.jobs import ExportJob
from sessions_app.recovery.jobs import ExitEventsJob, RecheckJob, ReconcileJob, RequestedSweepsJob, SettleEndedJob
from sessions_app.review.jobs import BranchCountsJob
from sessions_app.search.jobs import SearchIndexJob
from sessions_app.starts.jobs import IdleSleepJob, StartQueueJob
from sessions_app.supervisor.job import Job
from sessions_app.supervisor.jobs import DispatchJob, OrphansJob, WatchDatabaseJob
from sessions_app.suspensions.jobs import SuspensionsJob
from sessions_app.turns.jobs import StallsJob
from sessions_app.usage.jobs import BudgetsJob
from sessions_app.waits.jobs import DeadlinesJob
from sessions_app.workflows.jobs import WorkflowsJob
from sessions_app.workspace.jobs import TransfersJob

JOBS: Final[Sequence[type[Job]]] = (
    HeartbeatJob,
    DispatchJob,
    WatchDatabaseJob,
    ReconcileJob,
    SettleEndedJob,
    TransfersJob,
    StartQueueJob,
    RecheckJob,
    RequestedSweepsJob,
    DeadlinesJob,
    SuspensionsJob,
    BudgetsJob,
    FinishJob,
    StallsJob,
    ExitEventsJob,
    AgentSetupJob,
    MetricsJob,
    ExportJob,
    SearchIndexJob,
    BranchCountsJob,
    WorkflowsJob,
    OrphansJob,
    PlacementJob,
    IdleSleepJob,
    MaintenanceJob,
)
