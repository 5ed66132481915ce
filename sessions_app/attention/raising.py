"""Raise and resolve the attention items of a session in the transaction that changes it.

Every session transaction calls ``update_attention``, so no code that changes a state can forget it, and no item is
committed without the change that it reports. Each event declares which items follow from it; what follows from the
session's own state is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone

from sessions_app.agents.rules.agent_programs import NEEDS_PERSON_CODES
from sessions_app.attention.models import AttentionItem, open_item
from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AT_REST_KINDS, SHARED_KINDS, AttentionKind, Notice
from sessions_app.kernel.events.base import ALL_KINDS
from sessions_app.kernel.events.session import AttentionChanged
from sessions_app.kernel.models.session import CANCEL_IGNORED, INTERRUPTED_WAIT
from sessions_app.kernel.rules.states import (
    CANCELLED_BY_AGENT,
    TERMINAL_STATES,
    DesiredState,
    PromptState,
    RunState,
    SessionState,
    TurnOrigin,
    WorkState,
)
from sessions_app.recovery.rules.verification import MEMORY_CHECK_PREFIX
from sessions_app.sessions.rules.situation_facts import AGENT_DIED
from sessions_app.suspensions.rules.suspension import cut_off_sentence
from sessions_app.workflows.models import WorkflowRun

if TYPE_CHECKING:
    from sessions_app.kernel.transactions import SessionTransaction
    from sessions_app.suspensions.models import Suspension
    from sessions_app.turns.models import Turn

UNREACHABLE: Final = "unreachable"
"""Error code of an agent that may still run; the sweep checks it again without a person."""


def raise_item(transaction: SessionTransaction, notice: Notice, run: WorkflowRun | None = None) -> bool:
    """Raise an attention item in a session transaction; return False if an item with its key is already open.

    If an item with this key was resolved (a prompt is held a second time), it reopens and loses its marks, so that
    every user sees it again. ``run`` is the failed workflow run that the item links to.
    """
    row = open_item(notice, session=transaction.session, task_id=transaction.session.task_id, run=run)
    if row is None:
        return False
    if transaction.open_attention is not None:
        transaction.open_attention.append(row)
    transaction.record_event(
        AttentionChanged(item_id=str(row.id), kind=str(notice.kind), key=notice.key, state="raised")
    )
    return True


def resolve_items(
    transaction: SessionTransaction,
    resolution: str,
    kinds: Collection[str] = ALL_KINDS,
    *,
    key: str = "",
    keys: Collection[str] = (),
    key_begins: str = "",
) -> int:
    """Resolve the session's open items of these kinds, optionally by keys or key prefix; return how many there were."""
    if transaction.open_attention is None:
        rows = AttentionItem.objects.filter(session=transaction.session, resolved_at=None)
        # Without the texts: an agent decides how many open items there are.
        transaction.open_attention = list(rows.only("key", "kind"))
    wanted = {key, *keys} - {""}
    items = [
        item
        for item in transaction.open_attention
        if item.kind in kinds and (not wanted or item.key in wanted) and item.key.startswith(key_begins)
    ]
    if not items:
        return 0
    found = {item.id for item in items}
    # An agent decides how many there are, and a transaction may resolve each of them on its own.
    transaction.open_attention = [item for item in transaction.open_attention if item.id not in found]
    resolved = {"resolved_at": timezone.now(), "resolution": resolution[:64]}
    AttentionItem.objects.filter(id__in=found).update(**resolved)
    for item in items:
        transaction.record_event(
            AttentionChanged(
                item_id=str(item.id), kind=item.kind, key=item.key, state="resolved", resolution=resolution
            )
        )
    return len(items)


def update_attention(transaction: SessionTransaction) -> None:
    """Raise and resolve what the changes of this transaction call for."""
    inbox = SessionInbox(transaction)
    for event in list(transaction.events):
        if event.content is not None:
            event.content.update_inbox(inbox)
    if transaction.settled_prompt_keys:
        resolve_items(transaction, "settled", keys=transaction.settled_prompt_keys)
    for resolution, keys in inbox.resolved_at_end.items():
        resolve_items(transaction, resolution, keys=keys)
    if transaction.changed_fields & {"state", "error_code", "next_restart_at", "desired_state"}:
        _update_at_rest(transaction)


@dataclass(frozen=True, slots=True)
class SessionInbox:
    """What the events of a transaction may do to the attention items of its session; see ``Inbox`` of the events."""

    transaction: SessionTransaction
    resolved_at_end: dict[str, list[str]] = field(default_factory=dict)
    """Keys of the items to resolve after all events, by resolution: an agent decides how many there are."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        return str(self.transaction.session.id)

    @property
    def last_seq(self) -> int:
        """The number of the last event before this transaction."""
        return self.transaction.session.last_seq

    def raise_item(self, notice: Notice) -> bool:
        """Raise an item, unless one with its key is open."""
        return raise_item(self.transaction, notice)

    def resolve(self, resolution: str, kinds: Collection[str] = ALL_KINDS, *, key: str = "") -> int:
        """Resolve the open items of these kinds, optionally only the one with this key."""
        return resolve_items(self.transaction, resolution, kinds, key=key)

    def resolve_at_end(self, resolution: str, key: str) -> None:
        """Resolve the item with this key after all events, in one statement with the others of this resolution."""
        self.resolved_at_end.setdefault(resolution, []).append(key)

    def prompt_text(self, message_id: str) -> str:
        """Return the text of a prompt; empty if there is none."""
        prompts = self.transaction.session.prompts.filter(message_id=message_id)
        return prompts.values_list("text", flat=True).first() or ""

    def interrupted_wait(self, run_id: str) -> str | None:
        """Return what the run waited for if it was an external wait that has just been interrupted, else None."""
        wait: Mapping[str, Any] = self.transaction.session.metadata.get(INTERRUPTED_WAIT) or {}
        if not wait or wait.get("run_id") != run_id:
            return None
        return str(wait.get("reason") or "")

    def has_completed_turn(self) -> bool:
        """Whether a turn of the session has been completed."""
        return bool(self.transaction.session.runs.filter(state=RunState.COMPLETED).exists())

    def forget_ignored_cancel(self, run_id: str) -> None:
        """Resolve the item about a cancel that this turn ignored, because the turn has ended."""
        metadata = self.transaction.session.metadata
        ignored: Mapping[str, Any] = metadata.get(CANCEL_IGNORED) or {}
        if ignored and ignored.get("run_id") == run_id:
            others = {name: value for name, value in metadata.items() if name != CANCEL_IGNORED}
            self.transaction.set_fields(metadata=others)
            self.resolve("turn_ended", kinds=(AttentionKind.CANCEL_IGNORED,))

    def work_begins(self) -> None:
        """Resolve what asks for a review, because the agent works again."""
        self.resolve("working", kinds=AT_REST_KINDS | {AttentionKind.WAIT_INTERRUPTED})
        cut_short = [item for item in self.transaction.open_attention or () if item.kind == AttentionKind.CUT_SHORT]
        if cut_short and _newest_interrupted_prompt(self.transaction) is None:
            self.resolve("working", kinds=(AttentionKind.CUT_SHORT,))

    def work_ends(self) -> None:
        """Ask for a review, or for a decision about an interrupted prompt."""
        _needs_review(self.transaction)


def _newest_interrupted_prompt(transaction: SessionTransaction) -> tuple[str, str] | None:
    """Return message id and text of the newest interrupted prompt that is not settled."""
    rows = transaction.session.prompts.filter(state=PromptState.INTERRUPTED, continued_by=None, resent_as=None)
    return rows.order_by("id").values_list("message_id", "text").last()


def _suspension_of(run: Turn) -> Suspension | None:
    """Return the newest suspension because of a turn; for one that has only reported the limit again, the session's."""
    found = run.session.suspensions.all()
    if run.origin != TurnOrigin.AGENT or run.state != RunState.FAILED:
        found = found.filter(run=run)
    return found.select_related("run").order_by("-began_at").first()


def _needs_review(transaction: SessionTransaction) -> None:
    run, session = transaction.newest_run, transaction.session
    if (
        run is None
        or run.message_id.startswith(MEMORY_CHECK_PREFIX)
        or (run.state == RunState.CANCELLED and run.reason != CANCELLED_BY_AGENT)
        or session.desired_state == DesiredState.STOPPED
    ):
        return  # a user ended it, so no notice is needed
    if (cut := _newest_interrupted_prompt(transaction)) is not None and session.work_state != WorkState.WORKING:
        raise_item(transaction, notices.cut_short_notice(session.id, *cut))
        return
    if session.state in (SessionState.FAILED, SessionState.ERROR) or session.work_state == WorkState.WORKING:
        return  # has its own item, or works again within this same transaction
    if session.node_runs.filter(run__ended_at=None).exists():
        return  # its workflow continues without a person
    suspension = _suspension_of(run)
    if suspension is not None and suspension.ended_at is None:
        return  # it has an item about its limit
    if session.prompts.filter(state__in=(PromptState.QUEUED, PromptState.SENDING)).exists():
        return
    if (
        suspension is None or suspension.run.origin == TurnOrigin.AGENT
    ):  # nobody prompted it, so there is nothing to continue
        raise_item(transaction, notices.idle_notice(str(run.id), run.state))
    else:
        why = cut_off_sentence(suspension.reason)
        raise_item(transaction, notices.cut_off_notice(str(run.id), why, has_worked=suspension.has_worked))


def _update_at_rest(transaction: SessionTransaction) -> None:
    """Raise and resolve the items about the session's own state, once all events are known."""
    session, seq = transaction.session, transaction.session.last_seq
    if session.state in TERMINAL_STATES:
        resolve_items(transaction, str(session.state).lower(), ALL_KINDS - SHARED_KINDS)
        return
    if session.desired_state == DesiredState.STOPPED:
        resolve_items(transaction, "stopped", kinds=AT_REST_KINDS)
        return
    if "state" in transaction.changed_fields and session.state == SessionState.FAILED:
        error = session.error_message or session.error_code
        died = session.error_code == AGENT_DIED
        details = (str(session.id), session.start_attempts, error, seq, transaction.log_tail)
        raise_item(transaction, notices.gave_up_notice(*details, died=died))
    elif "state" in transaction.changed_fields and session.state not in (SessionState.FAILED, SessionState.ERROR):
        resolve_items(
            transaction, "running_again", kinds=(AttentionKind.GAVE_UP, AttentionKind.ERROR, AttentionKind.OWNER_LEFT)
        )
    elif session.state == SessionState.ERROR:
        _update_error(transaction, seq)


def _update_error(transaction: SessionTransaction, seq: int) -> None:
    session = transaction.session
    by_itself = session.next_restart_at is not None and session.error_code not in NEEDS_PERSON_CODES
    if by_itself or session.error_code == UNREACHABLE:
        resolve_items(transaction, "tried_again", kinds=(AttentionKind.ERROR,))
        return
    if not session.attention.filter(kind=AttentionKind.ERROR, resolved_at=None).exists():
        raise_item(
            transaction,
            notices.error_notice(str(session.id), session.error_code, session.error_message, seq, transaction.log_tail),
        )
