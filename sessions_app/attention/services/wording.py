"""Put the quotations of inbox items into their sentences, without secrets, when somebody reads or is sent them.

Searching a quotation for secrets costs what its author wants it to cost. So it happens in limited processes, outside
every transaction, and once: the result is stored with the item, under a keyed hash of everything that it depends on.
What could not be searched is left out, and the sentence says so.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django.db import DatabaseError
from django.utils.crypto import salted_hmac

from executors_app.encryption import SecretUnreadable
from executors_app.models import ExecutorRunning
from sessions_app.attention.rules.notices import WHAT_LIMIT
from sessions_app.attention.rules.quotations import WORDING_VERSION, fill_in
from sessions_app.confined.client import Failure, Outcome, PoolUnavailable
from sessions_app.confined.limits import Limits
from sessions_app.kernel.locking import refuse_in_transaction
from sessions_app.models import AttentionItem, TaskSession
from sessions_app.recovery.rules.history import RULES_VERSION
from sessions_app.recovery.services.history import secrets_of
from sessions_app.rendering.pool import TEXT_POOL

LIMITS: Final = Limits(cpu_seconds=3.0, seconds=9.0, memory=512 << 20)
"""For all items of one team together that have not been read before."""
ITEM_CPU_SECONDS: Final = 0.5
"""For one of these items."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unread:
    """An item whose quotations have to be searched for secrets."""

    item: AttentionItem
    secrets: Sequence[str]
    version: str


def word_items(items: Iterable[AttentionItem]) -> None:
    """Put the quotations of these items into their texts, in memory. Raises RuntimeError in a transaction.

    It takes two queries, and one statement that writes if any item was not read before. Items beyond ``LIMITS`` are
    searched the next time.
    """
    quoting = [item for item in items if item.quoted and not item.is_worded]
    if not quoting:
        return
    refuse_in_transaction()
    secrets = _secrets_of_sessions(quoting)
    unread: dict[int, list[_Unread]] = defaultdict(list)
    for item in quoting:
        known: list[str] | None = []
        if item.session_id is not None:
            known = secrets.get(item.session_id)
        if known is None:
            _show(item, fill_in(_templates(item), item.quoted, None))
            continue
        version = _version_of(item, known)
        if item.worded_for == version:
            _show(item, json.loads(item.worded))
        else:
            unread[item.about.team_id].append(_Unread(item, known, version))
    for team, items_of_team in unread.items():
        _search(team, items_of_team)


def _secrets_of_sessions(items: Sequence[AttentionItem]) -> dict[object, list[str] | None]:
    """Return the known secrets of each item's session; None if they cannot be read."""
    ids = {item.session_id for item in items if item.session_id is not None}
    sessions = list(TaskSession.objects.filter(id__in=ids).select_related("agent_profile"))
    executions = ExecutorRunning.objects.in_bulk(
        [session.agent_execution_id for session in sessions if session.agent_execution_id is not None]
    )
    found: dict[object, list[str] | None] = {}
    for session in sessions:
        if session.agent_execution_id is not None:
            session.__dict__["present_execution"] = executions.get(session.agent_execution_id)
        try:
            found[session.id] = sorted(secrets_of(session))
        except SecretUnreadable:
            log.warning("session %s: its secrets cannot be read, so the inbox quotes nothing of it", session.id)
            found[session.id] = None
    return found


def _version_of(item: AttentionItem, secrets: Sequence[str]) -> str:
    """Return what distinguishes the result from that of other texts, rules and secrets."""
    about = [RULES_VERSION, WORDING_VERSION, _templates(item), item.quoted, secrets]
    # A plain digest would let whoever reads the table try guesses at short secrets.
    return salted_hmac("kandev.quotations", json.dumps(about), algorithm="sha256").hexdigest()


def _templates(item: AttentionItem) -> dict[str, str]:
    return {"what": item.what, "why": item.why, "next_step": item.next_step, "detail": item.detail}


def _search(team: int, unread: Sequence[_Unread]) -> None:
    """Search the quotations of a team's items for secrets, show them, and store the results."""
    batch = [{"quoted": each.item.quoted, "secrets": each.secrets} for each in unread]
    try:
        outcomes = TEXT_POOL.run_batch(
            "quotations", batch, owner=f"team:{team}", limits=LIMITS, item_cpu_seconds=ITEM_CPU_SECONDS
        )
    except PoolUnavailable as error:
        log.warning("Quotations in the inbox are left out for now: %s", error)
        outcomes = [Outcome(failure=Failure.NOT_REACHED)] * len(batch)
    searched = []
    for each, outcome in zip(unread, outcomes, strict=True):
        if outcome.failure is Failure.BROKEN:
            log.error("A quotation could not be searched for secrets: %s", outcome.traceback)
        shown = None
        if outcome.result is not None:
            shown = outcome.result["shown"]
        texts = fill_in(_templates(each.item), each.item.quoted, shown)
        if outcome.failure is not Failure.NOT_REACHED:
            each.item.worded, each.item.worded_for = json.dumps(texts), each.version
            searched.append(each.item)
        _show(each.item, texts)
    _store(searched)


def _show(item: AttentionItem, texts: dict[str, str]) -> None:
    item.what = texts.get("what", item.what)[:WHAT_LIMIT]
    item.why = texts.get("why", item.why)
    item.next_step = texts.get("next_step", item.next_step)
    item.detail = texts.get("detail", item.detail)
    item.is_worded = True


def _store(items: Sequence[AttentionItem]) -> None:
    try:
        # These columns alone: the items in memory have their quotations in other fields, too.
        AttentionItem.objects.bulk_update(items, ["worded", "worded_for"])
    except DatabaseError as error:
        # The inbox is shown even while the database accepts no writes.
        log.info("The wording of inbox items is not stored: %s", error)
