"""A server that forks a process for each request of ``tests.preloaded``; most imports are already done."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final

LIBRARIES: Final = (
    *("aiohttp.web", "autobahn.twisted.websocket", "channels.generic.websocket", "channels.routing"),
    *("daphne.ws_protocol", "django.contrib.admin.sites", "django.contrib.postgres.fields"),
    *("django.core.management", "django.test.client", "markdown_it.presets", "nh3", "pydantic.functional_validators"),
    *("pydantic.json_schema", "pydantic.types", "rest_framework.serializers"),
)
"""Modules that import nearly everything else. None may open a file, start a thread or read Django's settings."""
OURS: Final = (
    *("sessions_app.events", "sessions_app.workflows.loader.client", "sessions_app.rendering.operations"),
    *("sessions_app.sessions.rules.session_status", "sessions_app.recovery.rules.recovery"),
    *("sessions_app.portable.reader", "sessions_app.workflows.engine.transitions"),
    *("executors_app.repositories.saved_branch", "executors_app.repositories.remotes", "executors_app.cleanup"),
)
"""Modules of Kandev that import most of those that work without Django's settings; rules, events, patterns.

What they are does not depend on the environment, so that it is the same before a process has its own.
"""
PACKAGES: Final = ("sessions_app", "executors_app")
ROOT: Final = Path(__file__).resolve().parents[1]
LOADS_THE_REST: Final = "sessions_app.management.preloading"
NEVER: Final = 86_400.0
"""Seconds after their start when the processes load the rest of Kandev: that takes each two seconds of CPU time."""
HIGHEST: Final = 1000
"""Above every descriptor in use; received descriptors wait there until those that they replace are closed."""


def main(number: int) -> None:
    """Serve the socket with this descriptor until its other end closes; a forked process runs its program."""
    for name in (*LIBRARIES, *OURS):
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise RuntimeError(f"a library has started a thread: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as connection:
        request = serve(connection)
    if request is not None:
        run_program(**request)


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return None at the end, and the program to run in each forked process."""
    running: dict[int, tuple[int, int]] = {}
    """By its pidfd, the pid of a process and the pipe that its exit status is written to."""
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor != connection.fileno():
                ready.unregister(descriptor)
                report(descriptor, *running.pop(descriptor))
                continue
            text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 64)
            if not text:
                return None
            *files, status = descriptors
            request = json.loads(text)
            pid = os.fork()
            if pid == 0:
                if request.pop("start_new_session"):
                    os.setsid()
                inherit(files, request.pop("numbers"), connection)
                return dict(request)
            for file in files:
                os.close(file)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, status
            ready.register(pidfd, select.POLLIN)
            connection.send(str(pid).encode())


def report(pidfd: int, pid: int, status: int) -> None:
    """Write the exit status of a process that has ended to its pipe."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(status, struct.pack("i", code))
    os.close(status)
    os.close(pidfd)


def inherit(files: list[int], numbers: list[int], connection: socket.socket) -> None:
    """Give the received descriptors their numbers, and close all others."""
    for place, file in enumerate(files):
        os.dup2(file, HIGHEST + place)
    connection.close()
    os.closerange(3, HIGHEST)
    for place, number in enumerate(numbers):
        os.dup2(HIGHEST + place, number)
    os.closerange(HIGHEST, HIGHEST + len(files))


class WithoutTheRest(MetaPathFinder):
    """Imports the module that loads everything half a minute after a start, and lets it wait for longer than a test."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec as usual, with a loader that changes its constant; None for others."""
        if fullname != LOADS_THE_REST:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: types.ModuleType) -> None:
                execute(module)
                vars(module)["AFTER"] = NEVER

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def forget_our_modules() -> None:
    """Let a program that has its own copy of Kandev import that copy."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def run_program(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Run a script, ``-m MODULE`` or ``-c CODE`` as the interpreter would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.meta_path.insert(0, WithoutTheRest())
    first, *rest = arguments
    sys.path[0] = str(Path(first).resolve().parent) if first not in {"-m", "-c"} else cwd
    if Path(sys.path[0]) != ROOT:
        forget_our_modules()
    if "PYTHONPATH" in env:
        sys.path[1:1] = env["PYTHONPATH"].split(os.pathsep)
    if first == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
