"""A DBOS application, run by the Python of ``make peers``: ``dbos_program.py (start|recover) DATABASE_URL COUNT``.

Each workflow records one step and waits in a second one. ``start`` prints a line once all wait there, and is then
killed. ``recover`` prints, as JSON, the version of DBOS and the seconds from ``DBOS.launch()`` until all wait there
again.
"""

import json
import sys
import threading
import time
from importlib.metadata import version

from dbos import DBOS, DBOSConfig, SetWorkflowID

mode, url, words = sys.argv[1:]
count = int(words)
arrived, lock, all_there, never = set[int](), threading.Lock(), threading.Event(), threading.Event()


def begin(number: int) -> int:
    """Return the number that the workflow records."""
    return number


def arrive(number: int) -> None:
    """Count an arrived workflow; wait to be killed, unless this is the recovery."""
    with lock:
        arrived.add(number)
        if len(arrived) == count:
            all_there.set()
    if mode == "start":
        never.wait()


def session(number: int) -> None:
    """Run both steps."""
    arrive_step(begin_step(number))


begin_step, arrive_step, workflow = DBOS.step()(begin), DBOS.step()(arrive), DBOS.workflow()(session)
DBOS(config=DBOSConfig(name="bench", system_database_url=url))
began = time.perf_counter()
DBOS.launch()
if mode == "start":
    for number in range(count):
        with SetWorkflowID(f"session-{number}"):
            DBOS.start_workflow(workflow, number)
assert all_there.wait(300), f"{len(arrived)} of {count} workflows have started"
print(json.dumps({"version": version("dbos"), "seconds": time.perf_counter() - began}), flush=True)
if mode == "start":
    never.wait()
