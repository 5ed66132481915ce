"""Load workflow texts for requests: rate limits, one load at a time for each user, and a cache of results.

Every text is loaded in a limited process (``sessions_app.workflows.loader.client``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from django.contrib.auth.models import User
from django.core.cache import cache

from sessions_app.accounts.rate_limits import RequestThrottle
from sessions_app.kernel.locking import is_in_transaction
from sessions_app.kernel.services.errors import ChecksUnavailable, Throttled
from sessions_app.workflows.language.files import InMemoryFiles
from sessions_app.workflows.language.limits import LOADING_SECONDS
from sessions_app.workflows.loader import client
from sessions_app.workflows.loader.client import CheckResult, LoadingUnavailable
from sessions_app.workflows.loader.loading import LoadResult

CHECK_THROTTLE: Final = RequestThrottle("workflow-check", 120, 60)
"""Checks and changes of workflows by one user, on pages and in the API together."""
MAX_WAIT: Final = 2.0
"""Seconds that a request waits for another request of its user that is loading a text."""
POLL_INTERVAL: Final = 0.05
_SLOT_TIMEOUT: Final = int(2 * LOADING_SECONDS)
"""Seconds after which a slot that was never released, as after a crash, is free again."""
_Files = tuple[tuple[str, str], ...]


@contextmanager
def user_load_slot(user: User, *, counted: bool = True) -> Iterator[None]:
    """Hold the load slot of ``user`` while a request loads texts: one request at a time for each user.

    ``counted`` requests (checks and changes) also count for the rate limit; showing stored texts does not. Raises
    Throttled.
    """
    user_key = str(user.pk)
    if counted and not CHECK_THROTTLE.admits(user_key):
        raise Throttled(CHECK_THROTTLE.wait, "You have checked workflows too often. Try again in a minute.")
    key = f"workflow-loading:{user_key}"
    until = time.monotonic() + MAX_WAIT
    while not cache.add(key, True, _SLOT_TIMEOUT):
        if time.monotonic() > until:
            raise Throttled(1, "Another check of yours is still running. Try again when it is done.")
        time.sleep(POLL_INTERVAL)
    try:
        yield
    finally:
        cache.delete(key)


def load_text(text: str, files: Mapping[str, str]) -> LoadResult:
    """Load a text with its stored files. Raises ChecksUnavailable.

    It can take half a minute. So a transaction gets only what was loaded just before, and ChecksUnavailable otherwise.
    """
    try:
        return _load_cached(text, _sorted_files(files))
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def check_text(text: str, files: Mapping[str, str]) -> CheckResult:
    """Check and draw a text with its stored files, for the editor. Raises ChecksUnavailable."""
    try:
        return _check_cached(text, _sorted_files(files))
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def load_node_data(text: str, node: str) -> dict[str, Any]:
    """Return the settings of a node. Raises EditNotPossible if there is no such node, and ChecksUnavailable."""
    try:
        return client.node_data_isolated(text, node)
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def apply_node_changes(text: str, node: str, settings: Mapping[str, Any], *, session_kept: bool | None = None) -> str:
    """Return the text with changed settings of a node. Raises EditNotPossible and ChecksUnavailable."""
    try:
        return client.apply_changes_isolated(text, node, settings, session_kept=session_kept)
    except LoadingUnavailable as error:
        raise ChecksUnavailable from error


def _sorted_files(files: Mapping[str, str]) -> _Files:
    return tuple(sorted(files.items()))


@lru_cache(maxsize=32)
def _load_cached(text: str, files: _Files) -> LoadResult:
    if is_in_transaction():
        raise LoadingUnavailable("the text was not loaded before the transaction began")
    return client.load_isolated(text, "workflow", InMemoryFiles(dict(files)))


@lru_cache(maxsize=8)
def _check_cached(text: str, files: _Files) -> CheckResult:
    return client.check_isolated(text, InMemoryFiles(dict(files)))
