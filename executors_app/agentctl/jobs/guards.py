"""Start the guard process of a job: forked by this execution's own forking process, or executed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import marshal
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl.jobs.requests import JobRequest
from executors_app.agentctl.process import forked_guard, guard_process, job_process
from executors_app.agentctl.process.forked_guard import ForkedProcess
from executors_app.machine.process import spawning

SHELL: Final = "/bin/sh"
GuardProcess = subprocess.Popen[bytes] | ForkedProcess
_GUARD_MAIN: Final = f"from {job_process.__name__} import main\nmain()\n"


def start_guard(
    request: JobRequest, cwd: int, env: Mapping[str, str], marker: Mapping[str, str], files: Sequence[int]
) -> tuple[GuardProcess, int]:
    """Start a guard and its job; return the guard's process and its control pipe. Raises OSError.

    ``cwd`` and ``files`` are open descriptors.
    """
    order = marshal.dumps(([SHELL, "-c", request.script], dict(env), request.timeout, request.grace))
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as guards:
        control_end, control = os.pipe()
        guards.callback(os.close, control_end)
        ours.callback(os.close, control)
        ends = (control_end, guards.enter_context(_memory_file(order)), *files, cwd)
        process = _fork_guard(ends) or _execute_guard(ends, marker)
        ours.pop_all()
    return process, control


def _fork_guard(ends: Sequence[int]) -> ForkedProcess | None:
    """Fork a guard; return None where none can be forked."""
    forking = forked_guard.own()
    if forking is None:
        return None
    return forking.fork_job_guard(ends)


def _execute_guard(ends: Sequence[int], marker: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with _memory_file(_GUARD_PROGRAM) as program:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", f"/proc/self/fd/{program}", *map(str, ends)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=dict(marker),
            pass_fds=[program, *ends],
            start_new_session=True,
            **spawning.child_user_arguments(),
        )


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("job")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield descriptor
    finally:
        os.close(descriptor)


def _guard_archive() -> bytes:
    """Build a zip archive that Python can run, with the guard's two modules."""
    packages = {"/".join(job_process.__name__.split(".")[:depth]) for depth in (1, 2, 3)}
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            for package in sorted(packages):
                archive.writestr(f"{package}/__init__.py", "")
            for module in (guard_process, job_process):
                path = Path(str(module.__file__))
                code = compile(path.read_bytes(), path.stem, "exec")
                compiled = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
                archive.writestr(f"{module.__name__.replace('.', '/')}.pyc", compiled)
            archive.writestr("__main__.py", _GUARD_MAIN)
        return buffer.getvalue()


_GUARD_PROGRAM: Final = _guard_archive()
"""Built at import: an upgrade of the package must not change the guards of a running agentctl."""
