"""Waits of a session and the single-use keys that end them; each change records its event."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.db import models
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app.machine import crash_points
from sessions_app.accounts.team_scope import TeamModel, TeamQuerySet
from sessions_app.kernel.models.session import INTERRUPTED_WAIT, TaskSession, choices
from sessions_app.kernel.rules.states import PromptState, RunState
from sessions_app.prompts.models import Prompt
from sessions_app.turns.models import Turn
from sessions_app.waits.events import WaitKeyExpired, WaitKeyMinted, WaitKeyRevoked
from sessions_app.waits.rules.wait_keys import (
    WaitKeyFacts,
    WaitKeyScope,
    WaitKeyState,
    WaitKind,
    derive_secret,
    recover_secret,
    secret_digest,
    wait_key_state,
)

if TYPE_CHECKING:
    from sessions_app.kernel.transactions import SessionTransaction


class WaitKeyQuerySet(TeamQuerySet["WaitKey"]):
    """Queries for keys by what they still open."""

    def unsettled(self) -> WaitKeyQuerySet:
        """Keys that were not consumed, revoked or recorded as expired."""
        return self.filter(consumed_at=None, revoked_at=None, expired_at=None)

    def active(self, now: datetime) -> WaitKeyQuerySet:
        """Keys that can be consumed at ``now``."""
        return self.unsettled().filter(models.Q(expires_at=None) | models.Q(expires_at__gt=now))

    def due(self, now: datetime) -> WaitKeyQuerySet:
        """Keys that have expired, but are not recorded as expired yet."""
        return self.unsettled().filter(expires_at__lte=now)


class WaitKey(TeamModel):
    """A single-use key that ends one wait. A wait that is requested again gets a new key."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="wait_keys")
    run = models.ForeignKey(Turn, models.CASCADE, null=True, blank=True, related_name="wait_keys")
    wait_kind = models.CharField(max_length=16, choices=choices(WaitKind))
    wait_id = models.CharField(max_length=128)
    secret_hash = models.CharField(max_length=64, unique=True)
    """SHA-256, in hexadecimal."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    """Who requested the wait; None: an agent."""
    expires_at = models.DateTimeField(null=True, blank=True)
    consumed_at = models.DateTimeField(null=True, blank=True)
    consumed_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    """None: a holder of the key without an account."""
    revoked_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=64, blank=True, default="")
    """Why it was revoked."""
    idempotency_key = models.CharField(max_length=128, blank=True, default="")
    first_answer = models.JSONField(null=True, blank=True)
    """The response to the request that consumed it; a repeat with the same idempotency key gets it again."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = WaitKeyQuerySet.as_manager()  # type: ignore[misc]

    class Meta(TeamModel.Meta):
        db_table = "resume_tokens"
        ordering = ("created_at", "id")
        indexes = (
            models.Index(fields=("session", "wait_id"), name="token_of_wait"),
            models.Index(
                fields=("expires_at",),
                condition=models.Q(consumed_at=None, revoked_at=None, expired_at=None),
                name="token_due",
            ),
        )

    def __str__(self) -> str:
        return f"key {str(self.id)[:8]} of a wait ({self.wait_kind})"

    @property
    def scope(self) -> WaitKeyScope:
        """The one wait that the key can end."""
        run_id = None
        if self.run_id is not None:
            run_id = str(self.run_id)
        return WaitKeyScope(str(self.session_id), run_id, self.wait_kind, self.wait_id)

    @property
    def event_fields(self) -> dict[str, Any]:
        """What the log may contain about the key; never its secret."""
        scope = self.scope
        return {
            "token_id": str(self.id),
            "run_id": scope.run_id,
            "wait_kind": str(scope.wait_kind),
            "wait_id": scope.wait_id,
        }

    def state(self, now: datetime) -> WaitKeyState:
        """Return the key's state at ``now``."""
        return wait_key_state(WaitKeyFacts(self.consumed_at, self.revoked_at, self.expired_at, self.expires_at), now)

    @property
    def consumer_name(self) -> str | None:
        """The user who consumed it; None if nobody did, or a holder of the key without an account."""
        if self.consumed_by is None:
            return None
        return self.consumed_by.get_username()

    def seal(self) -> str:
        """Store the hash of a new row's secret and return the secret."""
        secret = derive_secret(str(self.id), str(settings.SECRET_KEY))
        self.secret_hash = secret_digest(secret)
        return secret

    def secret(self) -> str | None:
        """Return the secret; None if the SECRET_KEY that it was derived from is gone. The caller checks permission."""
        keys = (str(settings.SECRET_KEY), *map(str, settings.SECRET_KEY_FALLBACKS))
        return recover_secret(str(self.id), self.secret_hash, keys)

    @classmethod
    def of_secret(cls, secret: str) -> WaitKey | None:
        """Return the row of a secret in any state; None if there is none."""
        return cls.objects.select_related("consumed_by").filter(secret_hash=secret_digest(secret)).first()


ResumeToken = WaitKey
"""The name of ``WaitKey`` in the contract of ``sessions_app.models``."""


LOST_STATES = frozenset({PromptState.HELD, PromptState.DISMISSED, PromptState.WITHDRAWN})
"""Prompt states from which no turn starts without a person."""


TOOL_CALL_CHANGED: Final = "tool_call_changed"
"""The reason of a key that was replaced because the agent has changed what it asks for."""
NEW_MESSAGE: Final = "new_message"
"""The reason of a key that was revoked because a prompt was sent instead of an answer."""


def begin_wait(
    transaction: SessionTransaction,
    kind: WaitKind,
    wait_id: str,
    *,
    deadline: datetime | None = None,
    reason: str = "",
    by: User | None = None,
    **event_fields: str,
) -> WaitKey:
    """Set the open run, if there is one, to waiting; return the key of the wait.

    The event of the run gets ``event_fields``, too.
    """
    run = transaction.open_run
    key = WaitKey(session=transaction.session, run=run, wait_kind=kind, wait_id=wait_id, expires_at=deadline, by=by)
    if run is not None:
        _set_waiting(transaction, run, key, reason, event_fields)
    return _save_key(transaction, key)


def _set_waiting(
    transaction: SessionTransaction, run: Turn, key: WaitKey, reason: str, event_fields: Mapping[str, str]
) -> None:
    run.wait_kind, run.wait_id, run.wait_reason, run.deadline_at = key.wait_kind, key.wait_id, reason, key.expires_at
    before = len(transaction.events)
    transaction.move_run(
        "wait",
        wait_kind=str(key.wait_kind),
        wait_id=key.wait_id,
        resume_token_id=str(key.id),
        deadline=_iso_time(key.expires_at),
        **event_fields,
    )
    run.save(update_fields=["wait_kind", "wait_id", "wait_reason", "deadline_at"])
    if len(transaction.events) > before:
        # The event gets its number only when the transaction ends.
        event = transaction.events[-1]
        transaction.after_events.append(lambda: Turn.objects.filter(id=run.id).update(since_seq=event.seq))


def mint_wait_key(
    transaction: SessionTransaction,
    run: Turn | None,
    kind: WaitKind,
    wait_id: str,
    *,
    expires_at: datetime | None = None,
    by: User | None = None,
) -> WaitKey:
    """Create a key for a wait; its secret is derived from its id and SECRET_KEY."""
    key = WaitKey(session=transaction.session, run=run, wait_kind=kind, wait_id=wait_id, expires_at=expires_at, by=by)
    return _save_key(transaction, key)


def _save_key(transaction: SessionTransaction, key: WaitKey) -> WaitKey:
    key.seal()
    key.save(force_insert=True)
    transaction.record_event(WaitKeyMinted(expires_at=_iso_time(key.expires_at), **key.event_fields))
    return key


def revoke_wait_keys(transaction: SessionTransaction, reason: str, **wanted: Any) -> int:
    """Revoke the session's unsettled keys that match the filter ``wanted``; return how many."""
    # One statement, because an agent decides how many there are. Locked, so that the events are those of its rows.
    unsettled = WaitKey.objects.unsettled().filter(session=transaction.session, **wanted)
    keys = list(unsettled.select_for_update())
    if not keys:
        return 0
    unsettled.update(revoked_at=timezone.now(), reason=reason[:64])
    for key in keys:
        transaction.record_event(WaitKeyRevoked(reason=reason, **key.event_fields))
    return len(keys)


def replace_wait_key(transaction: SessionTransaction, wait_id: str, reason: str) -> None:
    """Give a wait another key with the same deadline, because what the earlier one would answer has changed."""
    for key in WaitKey.objects.unsettled().filter(session=transaction.session, wait_id=wait_id):
        if revoke_wait_keys(transaction, reason, id=key.id):
            mint_wait_key(transaction, key.run, WaitKind(key.wait_kind), wait_id, expires_at=key.expires_at, by=key.by)


def revoke_wait_keys_of_run(transaction: SessionTransaction, run: Turn, reason: str) -> None:
    """Revoke the keys of a run that has ended, because it can no longer be answered."""
    if run.wait_kind:
        revoke_wait_keys(transaction, reason, run=run)


def expire_wait_key(transaction: SessionTransaction, key_id: uuid.UUID) -> WaitKey | None:
    """Record that a key has expired and return it; None if another process was first."""
    now = timezone.now()
    if not WaitKey.objects.due(now).filter(id=key_id).update(expired_at=now):
        return None
    key = WaitKey.objects.get(id=key_id)
    transaction.record_event(WaitKeyExpired(**key.event_fields))
    return key


def end_external_wait(transaction: SessionTransaction, reason: str) -> bool:
    """Cancel the open external wait and revoke its key; return False if there is none."""
    run = transaction.open_run
    if run is None or run.has_process or run.state != RunState.WAITING:
        return False
    transaction.move_run("cancel", reason=reason)
    return True


def interrupt_external_wait(transaction: SessionTransaction, reason: str) -> bool:
    """Interrupt an external wait whose deadline has passed; return False if there is none.

    ``attention.raising`` notifies people at once; the agent is informed with its next prompt.
    """
    run = transaction.open_run
    if run is None or run.has_process or run.state != RunState.WAITING:
        return False
    wait = {
        "run_id": str(run.id),
        "id": run.wait_id,
        "kind": str(run.wait_kind),
        "reason": run.wait_reason,
        "since": run.started_at.isoformat(),
        "deadline": _iso_time(run.deadline_at),
        "at": transaction.at.isoformat(),
    }
    transaction.set_fields(metadata={**transaction.session.metadata, INTERRUPTED_WAIT: wait})
    transaction.move_run("interrupt", reason=reason, once=f"run.interrupted:{run.id}")
    return True


def reach_crash_points(transaction: SessionTransaction) -> None:
    """Declare that the change of a wait is written, and that it is committed."""
    session_id = transaction.session.id
    crash_points.reached("wait.change_written", session_id)
    on_commit(lambda: crash_points.reached("wait.change_committed", session_id))


def end_run_of_lost_prompt(transaction: SessionTransaction, prompt: Prompt) -> None:
    """Cancel an external wait's run when the prompt that carries its result can no longer reach the agent."""
    run = transaction.open_run
    if prompt.state in LOST_STATES and run is not None and not run.has_process and run.message_id == prompt.message_id:
        transaction.move_run("cancel", reason=f"prompt_{prompt.state}")


def _iso_time(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.isoformat()
