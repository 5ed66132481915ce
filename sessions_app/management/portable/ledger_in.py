"""Putting the ledger of a session back, its receipts and its keys: the log tells of them, the snapshot completes it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.db.models import Model
from django.utils import timezone

from sessions_app.domain.portable.rebuild import Rebuilt
from sessions_app.domain.portable.rows import PromptRow
from sessions_app.domain.states import PromptState
from sessions_app.domain.tokens import WaitKind
from sessions_app.management.portable.places import user
from sessions_app.models import ContinuityReceipt, Prompt, ResumeToken, Run, TaskSession
from sessions_app.models.receipt import RECEIPT_KINDS, VERIFIED
from sessions_app.services.portable.values import Values

AT_ONCE: Final = 1000


def write_prompts(session: TaskSession, snapshot: Values, rows: Rebuilt, last_seq: int) -> list[str]:
    """The ledger; returns what of it had to be left out."""
    newer, problems, told = snapshot.number("last_seq") >= last_seq, [], {}
    for one in snapshot.rows("prompts"):
        message_id, created_at = one.text("message_id", 129), one.time("created_at")
        if not 0 < len(message_id) <= 128 or message_id in told:
            problems.append(f"a prompt without a name, or twice: {message_id[:40]!r}")
            continue
        told[message_id] = one
        state = one.one_of("state", set(PromptState), PromptState.HELD)
        row = rows.prompts.setdefault(
            message_id, PromptRow(message_id, one.text("kind"), state, created_at or timezone.now())
        )
        row.text = one.text("text") or row.text
        row.created_at = created_at or row.created_at
        row.state = state if newer else row.state
    made = {}
    for key, row in rows.prompts.items():
        if not row.text and row.state not in (PromptState.DONE, PromptState.DISMISSED, PromptState.WITHDRAWN):
            problems.append(f"prompt {key[:40]!r}: its text is nowhere")
            continue
        kind = row.kind if row.kind in Prompt.KINDS else "user"
        by = user(told[key].text("by")) if key in told else None
        made[key] = Prompt(session=session, message_id=key, text=row.text, kind=kind, state=row.state, by=by)
    _keep(made.values(), "created_at", [rows.prompts[key].created_at for key in made])
    _link(made, told)
    return problems


def _link(made: dict[str, Prompt], told: dict[str, Values]) -> None:
    """Which prompt took the place of which."""
    for name in ("resent_as", "continued_by"):
        taken: set[str] = set()
        for key, one in told.items():
            other = one.text(name, 128)
            if key in made and other in made and other not in taken:
                taken.add(other)
                Prompt.objects.filter(id=made[key].pk).update(**{name: made[other]})


def write_receipts(session: TaskSession, snapshot: Values, rows: Rebuilt) -> None:
    """How resumes ended; with the evidence as far as the snapshot has it."""
    told = {one.id("id"): one for one in snapshot.rows("receipts")}
    receipts, times = [], []
    for row in rows.receipts.values():
        more = told.get(row.id, Values(None))
        launch_id = more.text("launch_id", 64) or None
        if launch_id and ContinuityReceipt.objects.filter(launch_id=launch_id).exists():
            launch_id = None
        receipts.append(
            ContinuityReceipt(
                id=row.id,
                session=session,
                kind=row.kind if row.kind in RECEIPT_KINDS else "failed",
                verified=row.verified if row.verified in VERIFIED else "none",
                strategy=row.strategy,
                reason=row.reason,
                evidence=more.raw("evidence") if isinstance(more.raw("evidence"), dict) else {},
                launch_id=launch_id,
            )
        )
        times.append(more.time("created_at") or row.created_at)
    _keep(receipts, "created_at", times)


def write_tokens(session: TaskSession, tokens: Values) -> None:
    """The keys; whether one still opens anything is settled afterwards: none does."""
    rows = []
    for one in tokens.rows("tokens"):
        key, secret_hash = one.id("id"), one.text("secret_hash", 65)
        if key is None or len(secret_hash) != 64:
            continue
        run = Run.objects.filter(id=one.id("run_id") or uuid.uuid4(), session=session).first()
        rows.append(
            ResumeToken(
                id=key,
                session=session,
                run=run,
                wait_kind=one.one_of("wait_kind", set(WaitKind), WaitKind.EXTERNAL),
                wait_id=one.text("wait_id", 128),
                secret_hash=secret_hash,
                reason=one.text("reason", 64),
                created_at=one.time("created_at") or timezone.now(),
                **{name: one.time(name) for name in ("expires_at", "consumed_at", "revoked_at", "expired_at")},
            )
        )
    ResumeToken.objects.bulk_create(rows, ignore_conflicts=True)


def _keep(rows: Iterable[Any], name: str, values: Sequence[Any]) -> None:
    """Insert rows, and then the value that an insert sets by itself."""
    made: list[Model] = list(rows)
    if not made:
        return
    manager = type(made[0])._default_manager
    manager.bulk_create(made)
    for row, value in zip(made, values, strict=True):
        setattr(row, name, value)
    manager.bulk_update(made, [name], batch_size=AT_ONCE)
