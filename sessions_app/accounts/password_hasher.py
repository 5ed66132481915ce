"""Hash few passwords at once: each takes a processor for a good part of a second, and anyone may ask for one.

Strangers and those who are known (logged in, or in a browser in which the user has logged in before) wait separately,
so that a flood of attempts from many networks does not keep known people out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

RETRY_AFTER: Final = 5
"""Seconds after which a client that was refused should try again."""


class TooManyPasswords(Exception):
    """So many passwords are being checked that another one would have to wait too long."""

    title = "Too many logins at once"
    what = "Kandev is checking so many passwords that yours was not checked."
    next_step = f"Nothing was changed. Try again in {RETRY_AFTER} seconds."


class HashingLane:
    """Lets ``running`` hashes of its callers run at once, and ``waiting`` more wait."""

    def __init__(self, running: int, waiting: int):
        self._running = threading.Semaphore(running)
        self._places = threading.Semaphore(running + waiting)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn. Raises TooManyPasswords if too many wait already."""
        if not self._places.acquire(blocking=False):
            raise TooManyPasswords
        try:
            with self._running:
                yield
        finally:
            self._places.release()


_AT_ONCE: Final = max(1, (os.cpu_count() or 1) // 2)
STRANGERS: Final = HashingLane(_AT_ONCE, waiting=8)
KNOWN: Final = HashingLane(1, waiting=8)
_is_known: ContextVar[bool] = ContextVar("is_known", default=False)
_request: ContextVar[HttpRequest | None] = ContextVar("request", default=None)


@contextmanager
def known_caller() -> Iterator[None]:
    """Let the passwords in this block wait with those of known callers, although nobody is logged in."""
    token = _is_known.set(True)
    try:
        yield
    finally:
        _is_known.reset(token)


def _lane_of_caller() -> HashingLane:
    """Return where a password waits: whoever is logged in is known, on every page."""
    request = _request.get()
    is_logged_in = request is not None and request.user.is_authenticated
    if is_logged_in or _is_known.get():
        return KNOWN
    return STRANGERS


class LimitedPBKDF2(PBKDF2PasswordHasher):
    """Django's default hasher, in turns. Raises TooManyPasswords."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        """Hash a password when it is its turn."""
        with _lane_of_caller().turn():
            return super().encode(password, salt, iterations)

    def harden_runtime(self, password: str, encoded: str) -> None:
        """Take as long for a wrong password as for an unknown user, if there is room for that.

        The answer is known by now: an error here would let callers guess without being counted.
        """
        with suppress(TooManyPasswords):
            super().harden_runtime(password, encoded)


class TooManyPasswordsMiddleware:
    """Says whose passwords a page hashes, and answers 503 for one that had to wait too long, on whatever page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]):
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve a request."""
        token = _request.set(request)
        try:
            return self._get_response(request)
        finally:
            _request.reset(token)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer for ``TooManyPasswords``."""
        if not isinstance(exception, TooManyPasswords):
            return None
        response = render(request, "503.html", {"trouble": exception, "again": request.path}, status=503)
        response["Retry-After"] = str(RETRY_AFTER)
        response["Cache-Control"] = "no-store"
        return response
