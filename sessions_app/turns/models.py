"""Turns of an agent, and external waits: who began them, what belongs to them, and how they ended."""

# ruff: noqa: DJ001  (a text that is unknown differs from an empty one)

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Final

from django.db import models
from django.db.models.functions import Coalesce

from executors_app.orm import ObjectField, PreparedQuery
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.intent import Intent, IntentKind
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.rules.states import RunState, TurnOrigin


class Turn(TeamModel):
    """A turn of the agent, or an external wait, which has no agent process. Ends exactly once.

    A column that may be null is unknown while it is: not reported yet, or the row is older than the column.
    """

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="runs")
    message_id = models.CharField(max_length=128)
    state = models.CharField(max_length=12, choices=choices(RunState), default=RunState.RUNNING)
    has_process = models.BooleanField(default=True)
    """True for a turn. An external wait becomes one when the agent accepts the wait's result."""
    wait_kind = models.CharField(max_length=16, blank=True, default="")
    wait_id = models.CharField(max_length=128, blank=True, default="")
    """Id of the newest wait: the permission's, or the external wait's."""
    wait_reason = models.TextField(blank=True, default="")
    deadline_at = models.DateTimeField(null=True, blank=True)
    """When the newest wait expires; None: never."""
    waited = models.BooleanField(default=False)
    """Whether it was waiting when it ended, which tells an interrupted wait from an interrupted turn."""
    reason = models.CharField(max_length=64, blank=True, default="")
    since_seq = models.BigIntegerField(default=0)
    """``seq`` of the event with which the newest wait began."""
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    origin = models.CharField(max_length=8, null=True, blank=True, choices=choices(TurnOrigin))
    """Who began it; unknown for an external wait until the agent accepts its result."""
    prompt = models.ForeignKey("sessions_app.Prompt", models.SET_NULL, null=True, blank=True, related_name="turns")
    """The prompt that the agent accepted; None also for a prompt that is not in the ledger."""
    first_seq = models.BigIntegerField(null=True, blank=True)
    """``seq`` of the event that records its start, or, of a turn with the result of a wait, the last one before the
    agent accepted it. Its messages and tool calls come after it.
    """
    last_seq = models.BigIntegerField(null=True, blank=True)
    """``seq`` of the event that records its end. Output that arrives later is not counted as part of it."""
    stop_reason = models.CharField(max_length=64, null=True, blank=True)
    """Why the agent stopped, in its own words; ``reason`` is why the turn has its state."""
    usage = ObjectField(null=True, blank=True, default=None)
    """The figures that the agent reported in this turn (``rules.usage``). Whether they count this turn alone or the
    whole conversation, the agent decides.
    """
    request_digest = models.CharField(max_length=32, null=True, blank=True)
    """``text_digest`` of the user's text, without the context that was sent before it."""
    answer_digest = models.CharField(max_length=32, null=True, blank=True)
    """``text_digest`` of the agent's last message; only of a completed turn, and not of a very long message."""
    snapshot_before = models.CharField(max_length=64, null=True, blank=True)
    """The newest snapshot of the workspace when the agent got the prompt; empty if none was known."""
    snapshot_after = models.CharField(max_length=64, null=True, blank=True)
    """The snapshot that was taken at its end; unknown if nothing had changed since the one before."""
    recorded_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When its start was recorded, by the control plane's clock; ``started_at`` is by that of the agent's machine."""

    class Meta(TeamModel.Meta):
        db_table = "session_runs"
        ordering = ("started_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("session",),
                condition=models.Q(state__in=["running", "waiting"]),
                name="one_open_run_per_session",
            ),
        )
        indexes = (
            models.Index(fields=("reason",), name="run_interrupted", condition=models.Q(state="interrupted")),
            models.Index(fields=("session", "-started_at", "-id"), name="run_newest_of_session"),
            models.Index(fields=("started_at",), name="run_not_ended", condition=models.Q(ended_at__isnull=True)),
        )

    def __str__(self) -> str:
        return f"{'turn' if self.has_process else 'wait'} {str(self.id)[:8]} ({self.state})"

    @property
    def begun_at(self) -> datetime:
        """When it began, for limits on its duration: the clock of the agent's machine may be set wrong."""
        return self.recorded_at or self.started_at


BEGUN_AT: Final = Coalesce("recorded_at", "started_at")
"""``Turn.begun_at`` in a query."""
Run = Turn
"""The name of ``Turn`` in the contract of ``sessions_app.models``."""


_NEWEST_RUN = PreparedQuery(lambda key: Turn.objects.filter(session_id=key).order_by("-started_at", "-id")[:1])


def newest_run(session: TaskSession) -> Turn | None:
    """Return the session's run with the latest start, from which its derived status follows."""
    return attach_session(session, _NEWEST_RUN.first(session.id))


def newest_runs(sessions: Collection[uuid.UUID], columns: Collection[str] = ()) -> dict[uuid.UUID, Turn]:
    """Return the run with the latest start of each session that has one, by session; one query.

    ``columns`` are those that the caller reads; all if it names none. An index is asked once for each session, so the
    cost does not depend on how many runs they have had.
    """
    of_session = Turn.objects.filter(session=models.OuterRef("pk")).order_by("-started_at", "-id")
    asked = TaskSession.objects.filter(id__among=list(sessions))
    newest = asked.values(newest=models.Subquery(of_session.values("id")[:1]))
    found = Turn.objects.filter(id__in=newest).order_by()
    if columns:
        found = found.only("session_id", *columns)
    return {run.session_id: run for run in found}


def newest_turn_of(session_id: uuid.UUID, message_id: str) -> Turn | None:
    """Return the newest turn of a prompt, by the prompt's message id; None if it had none."""
    turns = Turn.objects.filter(session_id=session_id, message_id=message_id)
    return turns.order_by("-started_at", "-id").first()


def attach_session(session: TaskSession, run: Turn | None) -> Turn | None:
    """Let a run that was read by its session's id use the session object that the caller already has."""
    if run is not None:
        run.session = session
    return run


def was_cancelled(turn: Turn) -> bool:
    """Whether a user asked to cancel this turn, even if the agent never received the cancel."""
    cancels = Intent.objects.filter(session_id=turn.session_id, kind=IntentKind.CANCEL)
    return cancels.filter(payload__message_id=turn.message_id).exists()
