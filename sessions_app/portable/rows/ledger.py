"""Write the receipts of an imported session, and the keys of its waits."""

from __future__ import annotations

import uuid
from typing import Any

from django.utils import timezone

from sessions_app.kernel.rules.rebuild import ReceiptRow, SessionRebuild
from sessions_app.models import ContinuityReceipt, TaskSession, Turn, WaitKey
from sessions_app.portable.rows.batches import insert_rows
from sessions_app.portable.snapshot_values import SnapshotValues
from sessions_app.recovery.rules.verification import ReceiptKind, Verified
from sessions_app.waits.rules.wait_keys import WaitKind


def write_receipts(session: TaskSession, snapshot: SnapshotValues, rows: SessionRebuild) -> None:
    """Write the receipts, with their evidence if the snapshot has it."""
    recorded = {values.id("id"): values for values in snapshot.rows("receipts")}
    receipts, times = [], []
    for row in rows.receipts.values():
        values = recorded.get(row.id, SnapshotValues(None))
        receipts.append(_receipt(session, row, values))
        times.append(values.time("created_at") or row.created_at)
    insert_rows(receipts, times)


def _receipt(session: TaskSession, row: ReceiptRow, values: SnapshotValues) -> ContinuityReceipt:
    kind = row.kind if row.kind in set(ReceiptKind) else ReceiptKind.FAILED
    verified = row.verified if row.verified in set(Verified) else Verified.NONE
    return ContinuityReceipt(
        id=row.id,
        session=session,
        kind=kind,
        verified=verified,
        strategy=row.strategy,
        reason=row.reason,
        evidence=_evidence(values),
        launch_id=_launch_id(values),
        after_seq=values.number("after_seq") or row.after_seq,
    )


def _evidence(values: SnapshotValues) -> dict[str, Any]:
    evidence = values.raw("evidence")
    if isinstance(evidence, dict):
        return evidence
    return {}


def _launch_id(values: SnapshotValues) -> str | None:
    """Return the recorded id of the launch, unless another receipt of this database has it."""
    launch_id = values.text("launch_id", 64)
    if not launch_id or ContinuityReceipt.objects.filter(launch_id=launch_id).exists():
        return None
    return launch_id


def write_tokens(session: TaskSession, tokens: SnapshotValues) -> None:
    """Write the keys of waits; all that are still active are revoked afterwards."""
    rows = []
    for values in tokens.rows("tokens"):
        token_id, secret_hash = values.id("id"), values.text("secret_hash", 65)
        if token_id is None or len(secret_hash) != 64:
            continue
        run = Turn.objects.filter(id=values.id("run_id") or uuid.uuid4(), session=session).first()
        token = WaitKey(
            id=token_id,
            session=session,
            run=run,
            wait_kind=values.one_of("wait_kind", set(WaitKind), WaitKind.EXTERNAL),
            wait_id=values.text("wait_id", 128),
            secret_hash=secret_hash,
            reason=values.text("reason", 64),
            created_at=values.time("created_at") or timezone.now(),
            expires_at=values.time("expires_at"),
            consumed_at=values.time("consumed_at"),
            revoked_at=values.time("revoked_at"),
            expired_at=values.time("expired_at"),
        )
        rows.append(token)
    WaitKey.objects.bulk_create(rows, ignore_conflicts=True)
