"""Render text of agents and members in limited processes, once for each text.

The results are stored with the session, under a keyed hash of everything that they depend on. A text without a result
is shown as it is: nothing that a page needs depends on a result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.db.models import Sum
from django.utils.crypto import salted_hmac

from sessions_app.confined.client import Failure, OperationFailed, Outcome, PoolUnavailable, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.models import RenderedText, TaskSession
from sessions_app.rendering.pool import TEXT_POOL

PAGE_LIMITS: Final = Limits(cpu_seconds=3.0, seconds=9.0, memory=512 << 20)
"""For all texts of one page together that have not been rendered before."""
TEXT_CPU_SECONDS: Final = 0.5
"""For one of these texts."""
FILE_LIMITS: Final = Limits(cpu_seconds=1.0, seconds=5.0, memory=512 << 20)
"""For a file of the workspace."""
RESULT_LIMIT: Final = 1 << 20
"""Characters of one result. A text with a longer one is too expensive for a page."""
STORED_LIMIT: Final = 16 << 20
"""Characters of all stored results of one session; the oldest are removed."""
RENDERER_VERSION: Final = 6
"""Raise this when the code in ``sessions_app.rendering`` returns something else for the same text."""
_LIBRARIES: Final = ("markdown-it-py", "nh3", "pygments")
_TOO_EXPENSIVE: Final = "null"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """A text to be rendered: the name of an operation of ``rendering.operations``, and its arguments."""

    operation: str
    arguments: Mapping[str, Any]


def render_texts(session: TaskSession, texts: Sequence[Text]) -> list[dict[str, Any] | Failure]:
    """Return for each text the result of its operation, or why there is none.

    It takes at most ``PAGE_LIMITS``, one query, and two statements that write if there are new results. Texts come
    first that are first in ``texts``; those beyond the limits are rendered by the next call. It must not be called in a
    transaction.
    """
    if not texts:
        return []
    team = session.task.team_id
    keys = [_key_of(team, text) for text in texts]
    known = dict(session.rendered_texts.filter(key__in=set(keys)).values_list("key", "result"))
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    failures: dict[str, Failure] = {}
    new: dict[str, str] = {}
    for key, outcome in zip(missing, _run(team, list(missing.values())), strict=True):
        result = _stored_form(outcome)
        if result is None:
            failures[key] = outcome.failure or Failure.NOT_REACHED
        else:
            new[key] = result
    _store(session, new)
    stored = known | new
    results: list[dict[str, Any] | Failure] = []
    for key in keys:
        if key in failures:
            results.append(failures[key])
        else:
            results.append(_read(stored[key]))
    return results


def highlight_workspace_file(session: TaskSession, code: str, path: str) -> str | None:
    """Return the content of a file as HTML; None if that is not possible within ``FILE_LIMITS``.

    Files change all the time, so their results are not stored.
    """
    owner = _owner_of(session.task.team_id)
    try:
        answer = TEXT_POOL.run("highlighted_file", {"code": code, "path": path}, owner=owner, limits=FILE_LIMITS)
    except (TooExpensive, PoolUnavailable):
        return None
    except OperationFailed:
        logger.exception("A file could not be highlighted")
        return None
    return str(answer["html"])


def _owner_of(team: int) -> str:
    return f"team:{team}"


def _run(team: int, texts: Sequence[Text]) -> list[Outcome]:
    """Run operations of possibly different names, in the order of the texts."""
    batch = [{"operation": text.operation, "arguments": dict(text.arguments)} for text in texts]
    try:
        outcomes = TEXT_POOL.run_batch(
            "any_operation", batch, owner=_owner_of(team), limits=PAGE_LIMITS, item_cpu_seconds=TEXT_CPU_SECONDS
        )
    except PoolUnavailable as error:
        logger.warning("Texts are shown without formatting: %s", error)
        return [Outcome(failure=Failure.NOT_REACHED)] * len(batch)
    for outcome in outcomes:
        if outcome.failure is Failure.BROKEN:
            logger.error("A text could not be rendered: %s", outcome.traceback)
    return outcomes


def _stored_form(outcome: Outcome) -> str | None:
    """Return what is stored of an outcome; None if another attempt may have another one."""
    if outcome.failure in (Failure.TOO_EXPENSIVE, Failure.BROKEN):
        return _TOO_EXPENSIVE
    if outcome.result is None:
        return None
    result = json.dumps(outcome.result, ensure_ascii=False)
    if len(result) <= RESULT_LIMIT:
        return result
    return _TOO_EXPENSIVE


def _read(result: str) -> dict[str, Any] | Failure:
    if result == _TOO_EXPENSIVE:
        return Failure.TOO_EXPENSIVE
    found: dict[str, Any] = json.loads(result)
    return found


def _store(session: TaskSession, results: Mapping[str, str]) -> None:
    """Store new results, and remove the oldest beyond ``STORED_LIMIT``."""
    if not results:
        return
    rows = [RenderedText(session=session, key=key, result=text, size=len(text)) for key, text in results.items()]
    try:
        with transaction.atomic():
            RenderedText.objects.bulk_create(rows, ignore_conflicts=True)
            _remove_oldest(session)
    except DatabaseError as error:
        # A page is shown even while the database accepts no writes, or the session is deleted at the same time.
        logger.info("Rendered texts are not stored: %s", error)


def _remove_oldest(session: TaskSession) -> None:
    stored = session.rendered_texts
    excess = (stored.aggregate(size=Sum("size"))["size"] or 0) - STORED_LIMIT
    if excess <= 0:
        return
    last = 0
    for last, size in stored.order_by("id").values_list("id", "size"):  # noqa: B007  (the last one is used below)
        excess -= size
        if excess <= 0:
            break
    stored.filter(id__lte=last).delete()


def _key_of(team: int, text: Text) -> str:
    """Return the keyed hash of a text. Without the server’s key, nobody can find out whether a text is stored."""
    depends_on = [team, _versions(), text.operation, text.arguments]
    encoded = json.dumps(depends_on, sort_keys=True).encode()
    return salted_hmac("kandev.rendered-text", encoded, algorithm="sha256").hexdigest()


@cache
def _versions() -> list[str]:
    return [str(RENDERER_VERSION), *(version(library) for library in _LIBRARIES)]
