"""What texts of workflows cost: who may have one loaded, how often, and what is remembered of those that were.

Every text is loaded apart, in the loading process (``sessions_app.workflows.apart``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from django.core.cache import cache

from sessions_app.services.errors import ChecksUnavailable, Throttled
from sessions_app.services.throttle import Throttle
from sessions_app.workflows import apart
from sessions_app.workflows.apart import Checked, LoadingUnavailable
from sessions_app.workflows.library import Texts
from sessions_app.workflows.limits import LOADING_SECONDS
from sessions_app.workflows.loading import Loaded

CHECKS: Final = Throttle("workflow-check", 120, 60)
"""Checks and changes of workflows by one user, on pages and in the API together."""
PATIENCE: Final = 2.0
"""Seconds for which a request waits for another one of its user that has a text loaded."""
LOOK_EVERY: Final = 0.05
_HELD: Final = int(2 * LOADING_SECONDS)
"""Seconds after which a place that was never given back is free again."""
_Files = tuple[tuple[str, str], ...]


@contextmanager
def loading_for(user: Any, *, counted: bool = True) -> Iterator[None]:
    """While a request of ``user`` has texts loaded: one request at a time for each user.

    ``counted``: it is one of the checks and changes that a user may ask for so often; looking at what is kept is not.
    Raises Throttled.
    """
    who = str(user.pk)
    if counted and not CHECKS.admits(who):
        raise Throttled(CHECKS.wait, "Too many checks of workflows. Try again in a minute.")
    key, until = f"workflow-loading:{who}", time.monotonic() + PATIENCE
    while not cache.add(key, True, _HELD):
        if time.monotonic() > until:
            raise Throttled(1, "Another workflow is being checked for you. Try again when that is done.")
        time.sleep(LOOK_EVERY)
    try:
        yield
    finally:
        cache.delete(key)


def load_text(text: str, files: Mapping[str, str], name: str = "workflow") -> Loaded:
    """The workflow of a text with the files beside it, and its problems. Raises ChecksUnavailable.

    Not for within a transaction, as it can take a while; unless the same was loaded just before.
    """
    try:
        return _loaded(text, _sorted(files), name)
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def check_text(text: str, files: Mapping[str, str]) -> Checked:
    """What an editor shows of a text with the files beside it. Raises ChecksUnavailable."""
    try:
        return _checked(text, _sorted(files))
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def data_of_node(text: str, node: str) -> dict[str, Any]:
    """What a node of a text says. Raises NotEditable where there is no such node, and ChecksUnavailable."""
    try:
        return apart.node_data(text, node)
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def changed_text(text: str, node: str, settings: Mapping[str, Any], *, session_kept: bool | None = None) -> str:
    """The text with other settings of a node. Raises NotEditable and ChecksUnavailable."""
    try:
        return apart.with_changes(text, node, settings, session_kept=session_kept)
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def check_document(found: Checked) -> dict[str, Any]:
    """``{valid, problems: [{severity, code, message, fix, file, line, node}], svg}``."""
    return {"valid": found.is_valid, "problems": [asdict(one) for one in found.problems], "svg": found.svg}


def _sorted(files: Mapping[str, str]) -> _Files:
    return tuple(sorted(files.items()))


@lru_cache(maxsize=32)
def _loaded(text: str, files: _Files, name: str) -> Loaded:
    return apart.load(text, name, Texts(dict(files)))


@lru_cache(maxsize=8)
def _checked(text: str, files: _Files) -> Checked:
    return apart.check(text, library=Texts(dict(files)))
