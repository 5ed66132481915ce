"""Work whose cost agents, members or repositories choose: searching, comparing or hashing text, limited processes, git.

It must never run inside a database transaction, because all writers would wait for it. Nothing checks that in
production. The tests install a check that every such place calls, see ``tests/transaction_guard.py``.
"""

from __future__ import annotations

from collections.abc import Callable

Check = Callable[[str], None]

_check: Check | None = None


def begin_costly_work(what: str) -> None:
    """Announce such work, before it begins."""
    if _check is not None:
        _check(what)


def install_check(check: Check | None) -> None:
    """Have a function called before all such work of this process; None removes it."""
    global _check  # noqa: PLW0603 - one check for the whole process
    _check = check
