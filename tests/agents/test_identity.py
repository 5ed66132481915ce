"""A process is identified by more than its pid, and no other process is ever signalled."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from executors_app.machine.process import execution_processes, identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.machine.storage import ExecutionStorage
from executors_app.wire import journal_files
from executors_app.wire.executions import ExecutionFacts
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


@pytest.mark.parametrize(
    ("answer", "is_gone"), [(PermissionError, False), (ProcessLookupError, True), (None, True)], ids=str
)
def test_process_of_another_user_that_proc_hides_is_not_proven_gone(
    answer: type[OSError] | None, is_gone: bool, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = identity.identify(sleeper.pid)
    assert found is not None
    assert not identity.is_gone(found)
    signal_0 = Mock(side_effect=answer)
    with monkeypatch.context() as hidden:
        hidden.setattr(identity, "read_stat", lambda pid: None)  # as with hidepid=invisible
        hidden.setattr(os, "kill", signal_0)
        assert identity.is_gone(found) is is_gone
    signal_0.assert_called_once_with(found.pid, 0)


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


EXECUTION = "7b4d2f1e-5f0a-4c35-9a54-0f1f0a9be001"
FACTS = ExecutionFacts(
    id=EXECUTION,
    session_id="a-session",
    task_id="a-task",
    runtime="local_standalone",
    host_id="",
    agentctl_url="",
    auth_token="a-secret-of-some-length",
    status="ready",
    generation=1,
)
QUESTIONS: Mapping[str, Callable[[ExecutionStorage, int], object]] = {
    "which host this is": lambda storage, pid: identity.host_id.__wrapped__(),
    "the environment of a process": lambda storage, pid: identity.read_environment(pid),
    "the user of a process": lambda storage, pid: identity.owner_of(pid),
    "the execution of a process": lambda storage, pid: identity.execution_of_process(pid),
    "whether a process is an agentctl": lambda storage, pid: execution_processes.is_agentctl(pid, EXECUTION),
    "who has a marker": lambda storage, pid: identity.find_marked(EXECUTION),
    "the processes of all executions": lambda storage, pid: execution_processes.find_all_processes(),
    "the agent's conversation": lambda storage, pid: storage.resume_token(EXECUTION),
    "the rest of a journal": lambda storage, pid: storage.unread_journal(EXECUTION, 0, ""),
    "the token of the last launch": lambda storage, pid: storage.token_of(FACTS),
}


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("question", QUESTIONS)
def test_without_free_descriptors_nothing_counts_as_absent(
    question: str, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    storage = ExecutionStorage(tmp_path)
    directory = storage.state_directory_of(EXECUTION)
    journal_files.journal_directory(directory.path).mkdir(parents=True)
    directory.write_token("a token")
    directory.resume_token_file.write_text('{"resume_token": "a conversation"}')

    with no_free_descriptors(), pytest.raises(OSError, match="Too many open files"):
        QUESTIONS[question](storage, sleeper.pid)
