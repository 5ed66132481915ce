"""Scans of the machine's processes: what they find, how they are shared, and what a start does with the result."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from executors_app.machine.process import execution_processes, identity, spawning
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import LaunchSpec
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.executors.launches import leave_a_marked_process
from tests.waiting import PATIENCE, eventually


class _CountedLock:
    """A lock that counts attempts to acquire it."""

    def __init__(self) -> None:
        self.wanted = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.wanted.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_callers_share_the_next_scan_but_never_one_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    results = iter([{"first": [1]}, {"second": [2]}])

    def scan() -> dict[str, list[int]]:
        begun.set()
        assert may_end.wait(60)
        return next(results)

    monkeypatch.setattr(execution_processes, "_scan", scan)
    scans = execution_processes._SharedScans()
    scans._scanning = lock = _CountedLock()  # type: ignore[assignment]
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(scans.next_result)
        assert begun.wait(60)
        others = [threads.submit(scans.next_result) for _ in range(2)]
        assert all(lock.wanted.acquire(timeout=30) for _ in range(3))
        may_end.set()
        assert first.result() == {"first": [1]}
        assert [other.result() for other in others] == [{"second": [2]}] * 2


def test_process_cannot_hide_behind_another_execution(spec: LaunchSpec) -> None:
    """An agent may change its marker before it starts a process."""
    marks = [f"{EXECUTION_MARKER}={value}" for value in ("another", spec.execution_id)]
    with subprocess.Popen([sys.executable, "-I", "-c", _sleep_with(marks)], env={}) as child:
        try:
            eventually(
                lambda: execution_processes.find_processes(spec.execution_id).others, describe="the process is found"
            )
            assert [one.pid for one in execution_processes.find_processes("another").others] == [child.pid]
        finally:
            child.kill()


def _sleep_with(entries: list[str]) -> str:
    """Return a program that executes sleep with these variables, of which several may have the same name."""
    return (
        "import ctypes; encoded = lambda words: (ctypes.c_char_p * (len(words) + 1))(*map(str.encode, words), None);"
        f"ctypes.CDLL(None).execve(b'/bin/sleep', encoded(['sleep', '60']), encoded({entries!r}))"
    )


async def test_agentctl_that_may_have_leftovers_ends_them(spec: LaunchSpec) -> None:
    child = leave_a_marked_process(spec.execution_id)
    eventually(lambda: execution_processes.find_processes(spec.execution_id).others, describe="the marked child runs")

    launched = await RUNTIME.launch(spec)

    assert child.wait(PATIENCE) != 0
    assert not _has_no_leftovers(launched.pid)


async def test_agentctl_is_told_that_it_has_no_leftovers(spec: LaunchSpec) -> None:
    launched = await RUNTIME.launch(spec)

    assert _has_no_leftovers(launched.pid)


def _has_no_leftovers(pid: int | None) -> bool:
    assert pid is not None
    names = {entry.partition(b"=")[0].decode() for entry in identity.read_environment(pid)}
    return spawning.NO_LEFTOVERS_VARIABLE in names
