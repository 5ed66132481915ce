"""The processes of a Kandev, started one by one: several webs and one supervisor on one database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from executors_app.machine.process import identity
from tests.drills.deployment import MANAGE, Deployment
from tests.preloaded import PreloadedProcess
from tests.waiting import PATIENCE, eventually


@contextmanager
def served_by(deployment: Deployment, webs: int) -> Iterator[list[str]]:
    """Start a supervisor and that many webs; yield their addresses, of which the first answers ``api()``."""
    started: list[PreloadedProcess] = []
    try:
        started.append(start(deployment, str(MANAGE), "supervise"))
        urls = []
        for _ in range(webs):
            url, process = web(deployment)
            started.append(process)
            urls.append(url)
        for deployment.url in reversed(urls):
            eventually(
                deployment.is_ready, timeout=60, describe=f"{deployment.url} is ready: {deployment.log()[-1500:]}"
            )
        yield urls
    finally:
        for process in started:
            end(process)


def web(deployment: Deployment, env: Mapping[str, str] | None = None) -> tuple[str, PreloadedProcess]:
    """Start a web process; return its URL and the process. ``env`` overrides the deployment's environment."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    with listener:
        number = listener.fileno()
        arguments = ("-m", "daphne", "-v", "0", "--fd", str(number), "kandev.asgi:application")
        return f"http://127.0.0.1:{listener.getsockname()[1]}", start(deployment, *arguments, keeps=(number,), env=env)


def start(
    deployment: Deployment,
    *arguments: str,
    keeps: tuple[int, ...] = (),
    log: str = "serve.log",
    env: Mapping[str, str] | None = None,
) -> PreloadedProcess:
    """Start a Python process of the deployment in its own process session; ``log`` is the file it appends to."""
    with Path(deployment.home / log).open("ab") as stderr:
        return PreloadedProcess(
            arguments,
            env=deployment.env | dict(env or {}),
            stdout=stderr,
            stderr=stderr,
            keeps=keeps,
            start_new_session=True,
        )


def end(process: PreloadedProcess) -> None:
    """End a supervisor or a web with SIGTERM, then SIGKILL if it does not end. Agents continue."""
    if process.poll() is None and identity.identify(process.pid) is not None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
