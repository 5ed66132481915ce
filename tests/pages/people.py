"""A complete deployment, served on one port through all its restarts, and users with browsers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page

from tests.drills.deployment import Deployment, Session
from tests.network import free_port
from tests.pages.browsers import Visit

NAMES = ("driller", "mate", "leaver", "guest", "stranger")
"""Everyone except the stranger is in the team."""
AGENT = "Demo agent"
PEOPLE = """
import json
from django.contrib.auth.models import Group, User
from django.test import Client
cookies = {}
for name in json.loads(NAMES):
    user, _ = User.objects.get_or_create(username=name)
    if name != "stranger":
        user.groups.add(Group.objects.get())
    client = Client()
    client.force_login(user)
    cookies[name] = client.cookies["kandev_session"].value
print(json.dumps(cookies))
"""


class Place:
    """A deployment with a cookie for each user; it is served when a drill begins."""

    def __init__(self, home: Path, browser: Browser):
        self.deployment, self.browser = Deployment(home), browser
        self.deployment.prepare()
        self.cookies: dict[str, str] = json.loads(self.shell(PEOPLE.replace("NAMES", repr(json.dumps(NAMES)))))
        self.visits: list[Visit] = []
        self.deployment.port = free_port()
        self.serve()

    def shell(self, code: str) -> str:
        """Run ``code`` in ``manage.py shell`` and return the last line that it prints."""
        done = self.deployment.manage("shell", "-v", "0", "-c", code)
        assert done.returncode == 0, done.stderr
        return (done.stdout.strip().splitlines() or [""])[-1]

    def serve(self, **env: str) -> None:
        """Serve on the same port as before, unless the server is already running."""
        if self.deployment.server is None:
            self.deployment.serve(env)

    def start(
        self, prompt: str, title: str = "Drill", profile: Mapping[str, Any] | None = None, **values: Any
    ) -> Session:
        """Start a session on a task with this title."""
        session = self.deployment.start_session(prompt, {"name": AGENT, **(profile or {})}, **values)
        self.deployment.api("PATCH", f"tasks/{session.task_id}/", {"title": title})
        return session

    @contextmanager
    def visiting(self, name: str = "driller", **screen: Any) -> Iterator[Visit]:
        """Open a browser for one user."""
        visit = Visit(self.browser, self.deployment.url, self.cookies[name], **screen)
        try:
            yield visit
        finally:
            visit.context.close()

    def kill(self) -> None:
        """Kill the whole control plane with ``kill -9``."""
        self.deployment.kill_server(signal.SIGKILL)


def path_of(session: Session) -> str:
    """Return the path of the session's page."""
    return f"/tasks/{session.task_id}/sessions/{session.id}/"


def agent_says(page: Page) -> Locator:
    """Return the agent's messages on the page."""
    return page.locator(".message.agent > :is(.prose, .as-written)")


def lines_of(page: Page) -> list[str]:
    """Return every line of the agent's messages as a reader sees them."""
    return [line for text in agent_says(page).all_inner_texts() for line in text.splitlines() if line.strip()]


def pill(page: Page, name: str) -> Locator:
    """Return a cell of the status strip: Session, Executor, Agent or Continuity."""
    return page.locator(".strip > div", has=page.locator("dt", has_text=name)).locator("dd")
