"""Rows measured in a separate process on a durable PostgreSQL server.

``python -m tests.bench.on_postgresql`` is that process, shared by all parts. It ends when its standard input is closed.
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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import IO, Any

import django

from tests import postgresql
from tests.bench.figures import Figure
from tests.environment import DATABASE_URL  # with it: a data directory of its own, before there are settings
from tests.services import ROOT


def measure(function: Callable[..., list[Figure]], **arguments: Any) -> list[Figure]:
    """Return the rows of ``function(world, **arguments)``, run in PostgreSQL; raise RuntimeError on failure."""
    requests, answers = _process()
    request = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
    requests.write(json.dumps(request) + "\n")
    requests.flush()
    answer = json.loads(answers.readline() or '{"error": "The process on PostgreSQL has ended."}')
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return [Figure(**row) for row in answer["rows"]]


@cache
def _process() -> tuple[IO[str], IO[str]]:
    argv, pipe = [sys.executable, "-m", "tests.bench.on_postgresql"], subprocess.PIPE
    process = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def main() -> None:
    """Answer each request with a response, both one line of JSON."""
    server = postgresql.Server(postgresql.DURABLE)
    try:
        server.start()
        os.environ[DATABASE_URL] = server.new_database()
        django.setup()
        logging.disable(logging.WARNING)
        from tests.bench import world  # noqa: PLC0415  (models want the settings above)

        place = world.World()
        for line in sys.stdin:
            print(json.dumps(_answer(place, json.loads(line))), flush=True)
    finally:
        server.close()


def _answer(world: Any, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return {"rows": [asdict(row) for row in function(world, **request["arguments"])]}
    except Exception as error:  # noqa: BLE001  (the other parts want the process, too)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
