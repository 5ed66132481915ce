"""Run functions, regular expressions and schema checks of workflows in the sandbox process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from executors_app.machine.costly_work import begin_costly_work

TIMEOUT: Final = 10.0
"""Elapsed seconds, including the start of the process. Its processor time is limited to less."""
_ROOT: Final = Path(__file__).parents[3]
_COMMAND: Final = (sys.executable, "-m", "sessions_app.workflows.language.sandbox_process")


class SandboxError(Exception):
    """A request to the sandbox process has failed; users see the message."""


def run_in_sandbox(requests: Sequence[Mapping[str, Any]], timeout: float = TIMEOUT) -> list[Any]:
    """Return the results of the requests, in their order. Raises SandboxError for the first that fails.

    A request is ``{"operation": "javascript" | "python", "code", "inputs"}``, ``{"operation": "regex", "pattern",
    "text"}`` or ``{"operation": "schema", "schema", "value"}``.
    """
    if not requests:
        return []
    begin_costly_work("a function of a workflow")
    try:
        done = subprocess.run(
            _COMMAND,
            input=json.dumps(list(requests)),
            capture_output=True,
            check=False,
            cwd=_ROOT,
            encoding="utf-8",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            start_new_session=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"it took longer than {timeout:g} s") from error
    if done.returncode < 0:
        raise SandboxError("it used too much time or memory")
    if done.returncode:
        raise SandboxError("the sandbox process failed")
    values = []
    for answer in json.loads(done.stdout):
        if "error" in answer:
            raise SandboxError(answer["error"])
        values.append(answer["value"])
    return values
