"""A process that writes events into a deployment's database, as an agent's output would."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.drills.deployment import MANAGE, Deployment
from tests.preloaded import PreloadedProcess

SCRIPT = """
import sys, time
from django.contrib.auth.models import Group, User
from django.db import transaction
from rest_framework.authtoken.models import Token
from sessions_app.models import NewEvent, append_events

def say(session_id, count, size):
    last, left = 0, int(count)
    while left:
        events = [NewEvent("session.workspace.changed", {"text": "x" * int(size)}) for _ in range(min(20, left))]
        with transaction.atomic():
            last = append_events(session_id, events)
        left -= len(events)
        time.sleep(0.004)  # the pause that ingest leaves for other writers
    return last

def hire(username):
    user = User.objects.create_user(username)
    user.groups.add(Group.objects.get())
    return Token.objects.create(user=user).key

def expel(username):
    User.objects.get(username=username).groups.clear()

for line in sys.stdin:
    name, *words = line.split()
    print({"say": say, "hire": hire, "expel": expel}[name](*words), flush=True)
"""


class Talker:
    """The process that writes into the database.

    ``say SESSION COUNT SIZE`` answers with the last seq, ``hire USERNAME`` with the token of a new member
    of the team, ``expel USERNAME`` removes a member from it.
    """

    def __init__(self, deployment: Deployment):
        self._process = PreloadedProcess(
            [str(MANAGE), "shell", "-v", "0", "-c", f"exec({SCRIPT!r}, {{}})"],
            env=deployment.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, *words: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def done(self) -> str:
        """Wait until the command is done; return its answer."""
        assert self._process.stdout is not None
        return str(self._process.stdout.readline()).strip()

    def do(self, *words: Any) -> str:
        """Send a command and return its answer."""
        self.begin(*words)
        return self.done()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
