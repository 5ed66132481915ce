"""Work in a separate process with a database of its own.

``python -m tests.bench.separate_process sqlite`` is that process; the other database is a durable PostgreSQL server. It
ends when its standard input is closed.
"""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import Any, Self

import django

from tests import postgresql
from tests.bench.figures import Figure
from tests.environment import DATABASE_URL  # with it: a data directory of its own, before there are settings
from tests.services import ROOT


class SeparateProcess:
    """A process on ``sqlite`` or ``postgresql`` that calls functions with its world."""

    def __init__(self, database: str):
        argv, pipe = [sys.executable, "-m", "tests.bench.separate_process", database], subprocess.PIPE
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and wait for its end."""
        self._process.communicate()

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return the result of ``function(world, **arguments)`` as JSON has it; raise RuntimeError on failure."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "The separate process has ended."}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


def figures_on_postgresql(function: Callable[..., list[Figure]], **arguments: Any) -> list[Figure]:
    """Return the rows of ``function(world, **arguments)``; all parts share one process."""
    return [Figure(**row) for row in _on_postgresql().call(function, **arguments)]


@cache
def _on_postgresql() -> SeparateProcess:
    process = SeparateProcess("postgresql")
    atexit.register(process.close)
    return process


def main() -> None:
    """Answer each request with a response, both one line of JSON."""
    with _database(sys.argv[1]):
        django.setup()
        logging.disable(logging.WARNING)
        from tests.bench import world  # noqa: PLC0415  (models want the settings above)

        place = world.World()
        for line in sys.stdin:
            print(json.dumps(_answer(place, json.loads(line)), default=asdict), flush=True)


@contextmanager
def _database(kind: str) -> Iterator[None]:
    if kind == "sqlite":
        yield
        return
    server = postgresql.Server(postgresql.DURABLE)
    try:
        server.start()
        os.environ[DATABASE_URL] = server.new_database()
        yield
    finally:
        server.close()


def _answer(world: Any, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return {"result": function(world, **request["arguments"])}
    except Exception as error:  # noqa: BLE001  (the other parts want the process, too)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
