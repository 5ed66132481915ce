"""A published agent without Kandev: what it reports about itself, and how long its start takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from executors_app.agents import CAPABILITIES

PATIENCE: Final = 300
"""Timeout in seconds, after which an agent that does not answer is killed."""


class BareAgent:
    """A minimal ACP client that sends one request after the other."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._process = process
        self._number = 0

    def call(self, method: str, on_other: Callable[[Mapping[str, Any]], None] | None = None, **params: Any) -> Any:
        """Return the result of a request, or its ``error`` object as ``{"error": ...}``.

        ``on_other`` is called with every other message. Raises AssertionError if the agent exits first.
        """
        assert self._process.stdout is not None
        self._number += 1
        self._write({"id": self._number, "method": method, "params": params})
        for line in self._process.stdout:
            message = _parsed(line)
            if message.get("id") == self._number and "method" not in message:
                return message["result"] if "result" in message else {"error": message.get("error")}
            if on_other is not None and message:
                on_other(message)
        raise AssertionError(f"the agent ended before it answered {method}")

    def initialize(self, **capabilities: Any) -> Mapping[str, Any]:
        """Return the agent's answer to ``initialize`` with these client capabilities."""
        initialized: Mapping[str, Any] = self.call("initialize", protocolVersion=1, clientCapabilities=capabilities)
        return initialized

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self._write({"method": method, "params": params})

    def answer(self, request: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Answer a request of the agent."""
        self._write({"id": request["id"], "result": result})

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()


@contextmanager
def bare_agent(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Iterator[BareAgent]:
    """Run an agent; kill it with all its processes afterwards."""
    process = subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    impatience = threading.Timer(PATIENCE, os.killpg, (process.pid, signal.SIGKILL))
    impatience.start()
    try:
        yield BareAgent(process)
    finally:
        impatience.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):  # it has exited without reading everything
                pipe.close()
        process.wait()


def offered_capabilities(message: Mapping[str, Any]) -> set[str]:
    """Return the ``session/`` methods that the answer to ``initialize`` offers, named as in ``AgentType.offers``."""
    claims = message["agentCapabilities"]
    loads = {"load"} if claims.get("loadSession") else set()
    return loads | (set(claims.get("sessionCapabilities") or {}) & set(CAPABILITIES))


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
