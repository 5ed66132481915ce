"""A process that redeems one key from several threads at once, when it reads a line; prints the responses.

``python -m tests.waits.redeemer KEY NAME COUNT``; each thread has its own idempotency key.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import django

django.setup()

from django.db import connections  # noqa: E402 - there are no models before
from rest_framework.test import APIClient  # noqa: E402


def main(key: str, name: str, count: int) -> None:
    """Print that everything is ready, wait for a line, then redeem."""
    barrier = Barrier(count)

    def redeem(number: int) -> tuple[str, int, dict[str, object]]:
        mine = f"{name}-{number}"
        body = {"resume_token": key, "payload": mine, "idempotency_key": mine}
        barrier.wait()
        try:
            answer = APIClient().post("/api/v1/runs/resume/", body, format="json")
            return mine, answer.status_code, answer.json()
        finally:
            connections.close_all()

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with ThreadPoolExecutor(count) as pool:
        sys.stdout.write(json.dumps(list(pool.map(redeem, range(count)))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
