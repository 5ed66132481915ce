"""The guard of all tests notices costly work in transactions of the product, and no other work."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import transaction

from executors_app.machine.git import repository_git
from executors_app.repositories.git import Git
from sessions_app.confined.limits import Limits
from sessions_app.kernel.services.idempotency import mark_request
from sessions_app.models import session_transaction
from sessions_app.recovery.rules.verification import Replay, Request, compare_requests, find_received
from sessions_app.redaction.redactor import redact
from sessions_app.rendering.pool import TEXT_POOL
from sessions_app.workflows.language.sandbox import run_in_sandbox
from sessions_app.workflows.services.trigger_confirmation import fingerprint_of
from tests.supervisor.rows import make_session
from tests.transaction_guard import ALLOWED, CostlyWorkInTransaction, TransactionGuard, of_the_test

pytestmark = pytest.mark.django_db

LIMITS = Limits(cpu_seconds=1.0, seconds=5.0, memory=512 << 20)


def run_git() -> object:
    with tempfile.TemporaryDirectory() as directory:
        return Git(Path(directory)).run("version")


def run_workspace_git() -> object:
    return repository_git.run_git(Path(tempfile.gettempdir()), "version")


WORK: dict[str, Callable[[], object]] = {
    "redact": lambda: redact("a"),
    "limited process": lambda: TEXT_POOL.run("markdown", {"text": "a"}, owner="test", limits=LIMITS),
    "batch of texts": lambda: TEXT_POOL.run_batch("markdown", [{"text": "a"}], owner="test", limits=LIMITS),
    "git of the control plane": run_git,
    "git of a workspace": run_workspace_git,
    "comparison with a replay": lambda: compare_requests([Request(text="a")], Replay(1, ["a"])),
    "held prompts": lambda: find_received({1: "a"}, [], ["a"]),
    "digest of a request": lambda: mark_request("key", {"text": "a"}),
    "hash of a workflow": lambda: fingerprint_of({"text": "a"}),
    "function of a workflow": lambda: run_in_sandbox([{"operation": "regex", "pattern": "a", "text": "a"}]),
}


@pytest.mark.parametrize("work", WORK.values(), ids=list(WORK))
def test_costly_work_is_refused_in_a_transaction(
    work: Callable[[], object], transaction_guard: TransactionGuard
) -> None:
    work()
    session = make_session()
    for block in (transaction.atomic(), transaction.atomic(savepoint=False), session_transaction(session.id)):
        with block, pytest.raises(CostlyWorkInTransaction):
            work()
    assert len(transaction_guard.found) == 3
    transaction_guard.found.clear()


def test_transactions_of_tests_do_not_count() -> None:
    with of_the_test():
        redact("a")


def test_error_that_somebody_catches_is_remembered(transaction_guard: TransactionGuard) -> None:
    with transaction.atomic(), suppress(RuntimeError):
        redact("a")
    (found,) = transaction_guard.found
    assert found.startswith("a search for secrets in a transaction: sessions_app/redaction/redactor.py:redact")
    transaction_guard.found.clear()


def test_every_exception_names_a_function_and_a_reason() -> None:
    for place, reason in ALLOWED.items():
        path, _, function = place.partition(":")
        assert f"def {function}(" in Path(path).read_text()
        assert len(reason.split()) > 5
