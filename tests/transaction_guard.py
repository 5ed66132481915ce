"""A guard for all tests: work whose cost others choose never begins inside a database transaction of the product.

Such work is a search for secrets, a comparison or a hash of long texts, a limited process, git, or a function of a
workflow. Transactions of Django's test
cases, and of fixtures that roll back, do not count: see ``of_the_test``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from django.db import transaction

from executors_app.machine import costly_work
from sessions_app.kernel.locking import is_in_transaction

ALLOWED: Final[Mapping[str, str]] = {}
"""Functions within which a transaction may contain such work, as ``file.py:function``, and why."""


class CostlyWorkInTransaction(RuntimeError):
    """Everyone who writes would wait for this."""


class TransactionGuard:
    """Raises when costly work begins inside a transaction, and remembers it, in case somebody catches the error."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def check(self, what: str) -> None:
        """Raise CostlyWorkInTransaction if this thread is in a transaction, unless the place is in ``ALLOWED``."""
        # Called by ``begin_costly_work``, which is called by the place that the message begins with.
        if not is_in_transaction():
            return
        places = list(_places(sys._getframe(2)))
        if any(place in ALLOWED for place in places):
            return
        message = f"{what} in a transaction: {' < '.join(places)}"
        self.found.append(message)
        raise CostlyWorkInTransaction(message)

    @contextmanager
    def installed(self) -> Iterator[TransactionGuard]:
        """Check all costly work of this process within the block."""
        costly_work.install_check(self.check)
        try:
            yield self
        finally:
            costly_work.install_check(None)


def _places(frame: FrameType | None) -> Iterator[str]:
    """Yield the functions of the product and of the tests that are being called, the innermost first."""
    while frame is not None:
        code = frame.f_code
        for package in ("sessions_app/", "executors_app/", "tests/"):
            if package in code.co_filename and "site-packages" not in code.co_filename:
                yield f"{package}{code.co_filename.rpartition(package)[2]}:{code.co_name}"
                break
        frame = frame.f_back


def of_the_test() -> Any:
    """Return a transaction of a fixture, which counts as little as that of a test case."""
    block: Any = transaction.atomic()
    block._from_testcase = True
    return block
