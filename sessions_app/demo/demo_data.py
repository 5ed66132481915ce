"""Demo data: a team, a user, a repository, an agent that needs no key, tasks and a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.db import transaction

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.models import LoginLink
from sessions_app.catalogue.services.repositories import make_repository
from sessions_app.models import Repository, Task
from sessions_app.recovery.services.restarts import DEMO_TASK
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.workflows import save_workflow

DEMO_TEAM: Final = "Demo team"
DEMO_USER: Final = "demo"
DEMO_AGENT: Final = "Demo agent"
DEMO_EXECUTOR: Final = "This machine"
HELLO_TASK: Final = "Say hello"
HELLO_PROMPT: Final = "Say hello, then add a small program to this repository.\nmake a change"
LONG_PROMPT: Final = "Count for two minutes. While it counts, restart Kandev: it continues.\nwork 120 at 2"
_README: Final = """# Demo repository

The demo agent works in branches of this repository. It understands a few words, for example:

    make a change
    work 20
    ask
    write hello.txt Hello
"""
DEMO_WORKFLOW: Final = """\
# The agent writes a file, and a script in the same worktree checks it.
version: 3
metadata:
  name: Write and check
  description: The demo agent writes a file, and a script checks it.
nodes:
  - id: trigger
    type: trigger
    data: { label: Start }
  - id: writer
    type: agent
    data:
      label: Writer
      inputs: [{ name: task, type: string }]
      prompt: |
        Write a greeting.
        work 5
        write hello.txt Hello
  - id: check
    type: shell
    data: { label: Check, script: grep Hello hello.txt }
edges:
  - { source: trigger, target: writer, sourceHandle: output:text, targetHandle: input:task }
  - { source: writer, target: check }
"""


def create_demo_data(directory: Path) -> Any:
    """Create the demo data that is missing, with its repository in ``directory``; return the demo's user."""
    branch = make_repository(directory, _README)
    load_text(DEMO_WORKFLOW, {})  # before the transaction, which does not load workflows
    with transaction.atomic():
        team, _ = Group.objects.get_or_create(name=DEMO_TEAM)
        # No branch is checked out there, so that people can try a merge. So new tasks start from this one by name.
        known = {"name": "Demo repository", "default_branch": branch, "default_base": branch}
        repository, is_first = Repository.objects.get_or_create(team=team, path=str(directory), defaults=known)
        profile = _make_agent()
        user = _make_user(team)
        if is_first:
            place = {"team": team, "repository": repository}
            for title, description in ((HELLO_TASK, HELLO_PROMPT), (DEMO_TASK, LONG_PROMPT)):
                Task.objects.create(title=title, description=description, base_branch=branch, created_by=user, **place)
            save_workflow(user, {"text": DEMO_WORKFLOW, "agent_profile": profile, **place})
    return user


def create_login_url(user: User, port: int) -> str:
    """Create a one-time login link, at the deployment's public address if it has one, else on this machine."""
    origins = [origin for origin in settings.CSRF_TRUSTED_ORIGINS if "*" not in origin]
    if origins:
        base = origins[0]
    elif settings.KANDEV_LOCAL_NAME in settings.ALLOWED_HOSTS:
        base = f"http://{settings.KANDEV_LOCAL_NAME}:{port}"
    else:
        base = f"http://127.0.0.1:{port}"
    return f"{base}/login/{LoginLink.mint(user)}/"


def local_address_hint(link: str, port: int) -> str:
    """Return a hint for browsers that cannot open a link with our local name; empty for other links."""
    if urlsplit(link).hostname != settings.KANDEV_LOCAL_NAME:
        return ""
    return (
        f"Where {settings.KANDEV_LOCAL_NAME} does not resolve (in Safari, for example), use 127.0.0.1:{port} instead."
    )


def _make_agent() -> AgentProfile:
    Executor.objects.get_or_create(name=DEMO_EXECUTOR, defaults={"runtime": "local_standalone"})
    profile = AgentProfile.objects.filter(name=DEMO_AGENT, team=None).first()
    return profile or AgentProfile.objects.create(name=DEMO_AGENT, agent_type="demo")


def _make_user(team: Group) -> Any:
    """Create the demo's user, who logs in with links only and has access to the admin."""
    user, made = get_user_model().objects.get_or_create(username=DEMO_USER, defaults={"is_staff": True})
    if made:
        user.set_unusable_password()
        user.save(update_fields=["password"])
        user.groups.add(team)
    return user
