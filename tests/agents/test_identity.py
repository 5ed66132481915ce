"""A process is identified by more than its pid, and no other process is ever signalled."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.waiting import eventually


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "3600"], env={EXECUTION_MARKER: "a-test-of-marks"})
    yield process
    process.kill()
    process.wait()


def _of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = identity.identify(process.pid)
    assert found is not None
    return found


def test_identity_survives_json(sleeper: subprocess.Popen[bytes]) -> None:
    found = _of(sleeper)

    assert ProcessIdentity.from_json(found.to_json()) == found
    assert identity.is_alive(found)
    assert identity.identify_self().pid == os.getpid()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"pid": 1},
        {"pid": "1", "start_time": 1, "boot_id": "b", "pid_namespace": ""},
        {"pid": 0, "start_time": 1, "boot_id": "b", "pid_namespace": ""},
        [],
    ],
)
def test_invalid_identity_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a process identity"):
        ProcessIdentity.from_json(data)


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_process_with_a_reused_pid_is_another_one(change: dict[str, Any], sleeper: subprocess.Popen[bytes]) -> None:
    other = dataclasses.replace(_of(sleeper), **change)

    assert not identity.is_alive(other)
    assert identity.send_signal(other, signal.SIGKILL) is False
    assert identity.kill_all([other], 1) == []
    assert sleeper.poll() is None


def test_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    found = _of(sleeper)

    assert identity.send_signal(found, signal.SIGKILL) is True
    eventually(lambda: not identity.is_alive(found))

    assert sleeper.returncode is None, "the process was not reaped"
    assert identity.read_stat(found.pid) is not None
    assert identity.send_signal(found, signal.SIGKILL) is False


def test_process_name_with_parentheses_and_spaces_is_parsed(tmp_path: Path) -> None:
    program = tmp_path / ") S 1 (x"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "3600"])
    try:
        eventually(lambda: program.name in Path(f"/proc/{process.pid}/stat").read_text())
        found = identity.read_stat(process.pid)
        assert found is not None
        assert found.parent == os.getpid()
    finally:
        process.kill()
        process.wait()


def test_only_processes_with_the_exact_marker_are_found(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "3600"], env={EXECUTION_MARKER: "a-test-of-marks-2"}) as other:
        assert identity.find_marked("a-test-of-marks") == [_of(sleeper)]
        assert identity.find_marked("a-test") == []
        other.kill()


def test_kill_all_ends_processes_and_waits(sleeper: subprocess.Popen[bytes]) -> None:
    found = _of(sleeper)

    assert identity.kill_all([found], 5) == []

    assert not identity.is_alive(found)


def test_host_id_is_stable_and_does_not_reveal_the_boot_id() -> None:
    assert identity.host_id() == identity.host_id()
    assert len(identity.host_id()) == 32
    assert identity.kernel_boot_id() not in identity.host_id()
    assert identity.identify(2**22 + 1) is None


def test_process_still_in_exec_is_found_by_its_marker() -> None:
    """During ``execve`` the kernel shows no environment; without a retry, that would hide a live process."""
    for number in range(200):
        mark = f"{EXECUTION_MARKER}=just-started-{number}"
        process = subprocess.Popen(["sleep", "3600"], env=dict([mark.split("=")]))
        try:
            assert identity.read_environment(process.pid) == {mark.encode()}
        finally:
            process.kill()
            process.wait()


def test_process_without_an_environment_is_not_waited_for() -> None:
    process = subprocess.Popen(["sleep", "3600"], env={})
    try:
        eventually(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sleep"))
        found = identity.read_stat(process.pid)
        assert found is not None
        assert not found.in_exec
        assert identity.read_environment(process.pid) == frozenset()
    finally:
        process.kill()
    assert identity.read_environment(process.pid) == frozenset(), "a zombie has no environment, either"
    process.wait()
    assert identity.read_environment(process.pid) == frozenset()
