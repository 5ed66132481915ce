"""One Kandev, a hostile team that uses it up, and another team that works: what the other team waits for.

The hostile team has a session whose agent attacks all the time, a workspace that sends packs which expand, two viewers
who ask for its pages, files and tools, and an admin who stores what is expensive to check. The other team sends a
prompt to an agent of its own, waits for the answer, and sends the next one.
"""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.drills.deployment import ROOT, ApiError, Deployment, Session
from tests.executors.repositories import make_repository
from tests.hostile_load import agent
from tests.hostile_load.attackers import Attacker, StalledReader, admin_requests, repeat, viewer_requests
from tests.waiting import eventually

HOSTILE_TEAM: Final = """
import json
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client
from rest_framework.authtoken.models import Token
from executors_app.models import AgentProfile
from sessions_app.accounts.models import TeamRole
from sessions_app.models import Repository
team = Group.objects.create(name="Hostile team")
repository = Repository.objects.create(name="hostile", team=team, path={path!r})
profile = AgentProfile.objects.create(
    name="hostile", team=team, agent_type="custom_acp", command=json.loads({command!r}), env=json.loads({env!r}))
told = dict(team=team.id, repository=str(repository.id), profile=str(profile.id), cookie=settings.SESSION_COOKIE_NAME)
for role in ("member", "viewer", "admin"):
    user = User.objects.create_user(role)
    user.groups.add(team)
    TeamRole.objects.create(user=user, team=team, role=role)
    browser = Client()
    browser.force_login(user)
    cookie = browser.cookies[settings.SESSION_COOKIE_NAME].value
    told[role] = dict(token=Token.objects.create(user=user).key, cookie=settings.SESSION_COOKIE_NAME + "=" + cookie)
print(json.dumps(told))
"""
PACK_BOMBS: Final = """
import json
from pathlib import Path
from tests.hostile_load.pack_bombs import send_bombs
print(json.dumps(send_bombs(Path({path!r}), {seconds!r})))
"""
VIEWERS: Final = 2
ATTACK_SECONDS: Final = 20
HEALTH_INTERVAL: Final = 0.1
HEALTH_TIMEOUT: Final = 60.0
ANSWER_TIMEOUT: Final = 120.0
_ENDED: Final = {"done", "held", "interrupted", "dismissed"}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values are; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


HEALTH_LIMIT: Final = 5.0
"""Seconds for ``/healthz``, 99 of 100 times."""
ACCEPTED_LIMIT: Final = 10.0
"""Seconds until a prompt of the other team is queued, 99 of 100 times."""
ANSWERED_LIMIT: Final = 20.0
"""Seconds until it is answered, 99 of 100 times."""


@dataclass
class Measurements:
    """Seconds that the other team, and a probe of ``/healthz``, had to wait."""

    health: list[float] = field(default_factory=list)
    unhealthy: int = 0
    """Probes without the answer 200."""
    accepted: list[float] = field(default_factory=list)
    """From the request to the answer that the prompt is queued."""
    delivered: list[float] = field(default_factory=list)
    """From that answer until the agent has the prompt."""
    answered: list[float] = field(default_factory=list)
    """From the request until the turn's end is in the log."""
    lost: list[str] = field(default_factory=list)
    """Prompts that did not end as done in time."""
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    """The longest answer to each kind of the attackers' requests."""
    stored: int = 0
    """Events of the hostile session."""

    def violations(self) -> list[str]:
        """Return what the other team, or the probe, had to wait for too long."""
        limits = {"health": HEALTH_LIMIT, "accepted": ACCEPTED_LIMIT, "answered": ANSWERED_LIMIT}
        taken = {name: percentile(getattr(self, name), 0.99) for name in limits}
        slow = {name: limit for name, limit in limits.items() if taken[name] > limit}
        found = [f"{name}: {taken[name]:.1f} s, at most {limit:g} s" for name, limit in slow.items()]
        found += self.lost
        if self.unhealthy:
            found.append(f"{self.unhealthy} probes of /healthz failed")
        if not self.answered:
            found.append("no prompt was answered")
        if not any("pack bomb" in name for name in self.outcomes):
            found.append("no pack bomb was checked")
        found += [name for name in self.outcomes if "pack bomb" in name and "accepted" in name]
        return found

    def table(self) -> str:
        """Return the measurements as lines of text."""
        lines = [f"{'seconds':<22}{'count':>7}{'median':>9}{'p99':>9}{'max':>9}"]
        for name in ("health", "accepted", "delivered", "answered"):
            values: list[float] = getattr(self, name)
            numbers = (percentile(values, 0.5), percentile(values, 0.99), max(values, default=0.0))
            lines.append(f"{name:<22}{len(values):>7}" + "".join(f"{number:>9.3f}" for number in numbers))
        lines.append(f"probes of /healthz without 200: {self.unhealthy}; prompts not answered: {len(self.lost)}")
        lines.append(f"events of the hostile session: {self.stored:,}")
        lines += [f"  {name}: {count}" for name, count in sorted(self.outcomes.items())]
        lines += [f"  slowest {name}: {seconds:.1f} s" for name, seconds in sorted(self.slowest.items())]
        return "\n".join(lines)


class HostileLoad:
    """The two teams of a deployment that serves."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        repository = make_repository(deployment.home / "hostile-repository", "README.md", "# Hostile\n")
        self.repository = repository
        home = deployment.home / "hostile-home"
        home.mkdir()
        env = {"PYTHONPATH": str(ROOT), "KANDEV_DEMO_AGENT_HOME": str(home)}
        script = HOSTILE_TEAM.format(path=str(repository), command=json.dumps(agent.command()), env=json.dumps(env))
        self.team: dict[str, Any] = json.loads(deployment.run_script(script))
        self.measured = Measurements()
        self._stopped = threading.Event()

    def run(self, seconds: float) -> Measurements:
        """Let both teams work for that long; return what the other one waited for."""
        other = self.deployment.start_session("remember walrus")
        other.wait_for("WAITING_FOR_INPUT")
        hostile = self._start_hostile_session()
        attackers = self._attackers(hostile)
        threads = [repeat(self._stopped, lambda: self._attack_again(hostile), 1.0)]
        threads.append(repeat(self._stopped, self._probe_health, HEALTH_INTERVAL))
        for attacker in attackers:
            attacker.start()
        threads.append(repeat(self._stopped, self._send_pack_bombs, 0.0))
        deadline, number = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < deadline:
                number += 1
                self._prompt_other(other, number)
        finally:
            self._stopped.set()
            for thread in (*threads, *attackers):
                thread.join(HEALTH_TIMEOUT)
        self._collect(attackers, hostile)
        return self.measured

    def _start_hostile_session(self) -> Session:
        api = self._as("member")
        task = api(
            "POST", "tasks/", {"title": "Work", "team": self.team["team"], "repository": self.team["repository"]}
        )
        body = {
            "agent_profile": self.team["profile"],
            "executor": self.deployment.seeded["executor"],
            "prompt": f"attack {ATTACK_SECONDS}",
        }
        made = api("POST", f"tasks/{task['id']}/sessions/", body)
        session = Session(self.deployment, str(task["id"]), str(made["id"]), Path())
        eventually(lambda: session.row["state"] == "RUNNING", timeout=60, describe="the hostile agent attacks")
        return session

    def _as(self, role: str) -> Callable[..., Any]:
        """Return the API as a user of the hostile team."""

        def call(method: str, path: str, body: Any = None) -> Any:
            request = urllib.request.Request(
                f"{self.deployment.url}/api/v1/{path}",
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": f"Token {self.team[role]['token']}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=HEALTH_TIMEOUT) as answer:
                return json.loads(answer.read() or b"null")

        return call

    def _attackers(self, hostile: Session) -> list[Attacker | StalledReader]:
        url, viewer, admin = self.deployment.url, self.team["viewer"], self.team["admin"]
        viewing = viewer_requests(hostile.path, viewer["cookie"], viewer["token"])
        stream = f"/api/v1/{hostile.path}/events/stream?after=0"
        return [
            *(Attacker(url, viewing[number * 4 :] + viewing[: number * 4], self._stopped) for number in range(VIEWERS)),
            Attacker(url, admin_requests(self.team["team"], admin["token"]), self._stopped),
            StalledReader(url, stream, {"Authorization": f"Token {viewer['token']}"}, self._stopped),
        ]

    def _attack_again(self, hostile: Session) -> None:
        """Queue the next attack once the last one has ended; an overloaded server is asked again."""
        try:
            open_prompts = [row for row in hostile.prompts() if row["state"] not in _ENDED]
            if not open_prompts:
                body = {"message_id": f"attack-{time.monotonic_ns()}", "text": f"attack {ATTACK_SECONDS}"}
                self._as("member")("POST", f"{hostile.path}/prompt/", body)
        except OSError as error:
            self.measured.outcomes[f"attack not queued: {error}"] += 1

    def _send_pack_bombs(self) -> None:
        """Have the bundles of a workspace of the hostile team checked for a while, as a supervisor does."""
        script = PACK_BOMBS.format(path=str(self.repository), seconds=ATTACK_SECONDS)
        self.measured.outcomes += Counter(json.loads(self.deployment.run_script(script)))

    def _probe_health(self) -> None:
        started = time.monotonic()
        try:
            with urllib.request.urlopen(f"{self.deployment.url}/healthz", timeout=HEALTH_TIMEOUT) as answer:
                answer.read()
        except OSError:
            self.measured.unhealthy += 1
        self.measured.health.append(time.monotonic() - started)

    def _prompt_other(self, session: Session, number: int) -> None:
        """Send one prompt as the other team, and follow it to the end of its turn."""
        message_id, started = f"other-{number}", time.monotonic()
        try:
            body = {"message_id": message_id, "text": "what was the word?"}
            self.deployment.api("POST", f"{session.path}/prompt/", body)
        except (ApiError, AssertionError, OSError) as error:
            self.measured.lost.append(f"{message_id} was not accepted: {error}")
            return
        accepted = time.monotonic()
        self.measured.accepted.append(accepted - started)
        delivered = 0.0
        while time.monotonic() < accepted + ANSWER_TIMEOUT:
            state = self._state_of(session, message_id)
            if not delivered and state not in ("queued", "sending"):
                delivered = time.monotonic()
                self.measured.delivered.append(delivered - accepted)
            if state == "done":
                self.measured.answered.append(time.monotonic() - started)
                return
            time.sleep(0.02)
        self.measured.lost.append(f"{message_id} is {self._state_of(session, message_id)}")

    def _state_of(self, session: Session, message_id: str) -> str:
        """Read a prompt's state from the database: a request would wait for what is measured here."""
        key = session.id.replace("-", "")
        sql = "SELECT state FROM session_prompts WHERE session_id = ? AND message_id = ?"
        return str(self.deployment.rows(sql, key, message_id)[0]["state"])

    def _collect(self, attackers: Sequence[Attacker | StalledReader], hostile: Session) -> None:
        for attacker in attackers:
            if isinstance(attacker, Attacker):
                self.measured.outcomes += attacker.outcomes
                for name, taken in attacker.seconds.items():
                    self.measured.slowest[name] = max(self.measured.slowest.get(name, 0.0), *taken)
        sql = "SELECT count(*) AS n FROM session_events WHERE session_id = ?"
        self.measured.stored = int(self.deployment.rows(sql, hostile.id.replace("-", ""))[0]["n"])
