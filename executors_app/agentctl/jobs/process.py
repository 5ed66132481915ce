"""agentctl's end of the process that guards a job (``job_process``)."""

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

from executors_app.agentctl import guard_process, two_users
from executors_app.agentctl.jobs import job_process
from executors_app.agentctl.jobs.requests import JobRequest
from executors_app.agentctl.pipes import wait_for_end

SHELL: Final = "/bin/sh"
_MAIN: Final = f"from {job_process.__name__} import main\nmain()\n"


class JobProcess:
    """One guard that was started; ``wait`` for it."""

    def __init__(self, process: subprocess.Popen[bytes], control: int):
        self._process, self._control = process, control

    @property
    def pid(self) -> int:
        """The guard's."""
        return self._process.pid

    def stop(self, grace: float, why: str) -> None:
        """TERM for the script's tree, and KILL after ``grace`` seconds; ``why`` goes into its end."""
        with contextlib.suppress(OSError):
            os.write(self._control, f"stop {grace:.3f} {why}\n".encode())

    def kill(self) -> None:
        """End a guard that does not do its work; the script dies with it."""
        self._process.kill()

    async def wait(self) -> None:
        """Until the guard has ended, and with it all of the job."""
        await wait_for_end(self._process.pid)
        self._process.wait()
        control, self._control = self._control, -1
        os.close(control)


def start(
    request: JobRequest, cwd: int, env: Mapping[str, str], marker: Mapping[str, str], files: Sequence[int]
) -> JobProcess:
    """Start a guard with its job; ``cwd`` and ``files`` are open descriptors. Raises OSError."""
    order = marshal.dumps(
        ([SHELL, "-c", request.script], dict(env), f"/proc/self/fd/{cwd}", request.timeout, request.grace)
    )
    with contextlib.ExitStack() as stack:
        program, orders = (stack.enter_context(_in_memory(data)) for data in (_PROGRAM, order))
        control_end, control = os.pipe()
        stack.callback(os.close, control_end)
        passed = (control_end, orders, *files)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", f"/proc/self/fd/{program}", *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(marker),
                pass_fds=[program, cwd, *passed],
                start_new_session=True,
                **two_users.of_children(),
            )
        except BaseException:
            os.close(control)
            raise
        return JobProcess(process, control)


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("job")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield descriptor
    finally:
        os.close(descriptor)


def _archive() -> bytes:
    """The guard's program and the one it is built on, as an archive that Python runs."""
    packages = {"/".join(job_process.__name__.split(".")[:depth]) for depth in (1, 2, 3)}
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            for package in sorted(packages):
                archive.writestr(f"{package}/__init__.py", "")
            for module in (guard_process, job_process):
                archive.writestr(f"{module.__name__.replace('.', '/')}.pyc", _compiled(Path(str(module.__file__))))
            archive.writestr("__main__.py", _MAIN)
        return buffer.getvalue()


def _compiled(path: Path) -> bytes:
    code = compile(path.read_bytes(), path.stem, "exec")
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


_PROGRAM: Final = _archive()
"""Made once: an upgrade of the package in place must not change the guards of this agentctl (rule 24)."""
