"""One team with a member and a viewer, a stranger, staff of no team, and objects for every URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from sessions_app.accounts.models import ApiToken, TeamRole
from sessions_app.models import Message, RepositoryRemote
from sessions_app.notifications.models import PushDevice, PushKey, Webhook
from sessions_app.notifications.push_devices import public_key
from tests.admin.everything import make_set
from tests.api.world import PERMISSION, World, make_world, prompt, workflow_run
from tests.attention.raising import raise_item_of
from tests.transaction_guard import of_the_test

ROLES: Final = ("anonymous", "stranger", "viewer", "member", "staff")
"""``staff`` is in no team: it administers, but finds no team's objects on pages and in the API."""


@dataclass(frozen=True)
class Cast:
    """The users of all roles, and the objects that they may or may not access."""

    world: World
    people: Mapping[str, User | None]
    names: Mapping[str, Any]
    """The values of the variables in URLs."""


def make_cast() -> Cast:
    """Create the users and objects in the test's database."""
    world = make_world()
    viewer = User.objects.create(username="viewer")
    viewer.groups.add(world.team)
    TeamRole.objects.create(user=viewer, team=world.team, role=TeamRole.Role.VIEWER)
    operator = User.objects.create(username="operator", is_staff=True)
    for state in ("held", "interrupted", "queued"):
        prompt(world.session, state, state)
    item = raise_item_of(world.session, "error", "rights")
    run = workflow_run(world)
    # Nothing listens there, so a test of the connection fails at once.
    RepositoryRemote.objects.create(repository=world.repository, address="http://127.0.0.1:1/project.git", token="x")
    webhook = Webhook.objects.create(user=world.member, url="https://hooks.example/")
    key = PushKey.objects.get(public_key=public_key())
    device = PushDevice.objects.create(user=world.member, name="A browser", service="push.example", signed_with=key)
    people = {"anonymous": None, "stranger": world.stranger, "viewer": viewer, "member": world.member}
    names = {
        "task_id": world.task.id,
        "session_id": world.session.id,
        "permission_id": PERMISSION,
        "token": world.token(),
        "message_id": "held",
        "entry_id": _make_message(world).id,
        "executor_id": world.executor.id,
        "profile_id": world.profile.id,
        "sweep_id": world.sweep.id,
        "request_id": world.sweep_request.id,
        "item_id": item.id,
        "webhook_id": webhook.id,
        "device_id": device.id,
        "profile": world.profile.id,
        "executor": world.executor.id,
        "secret": "used",
        "team_id": world.team.pk,
        "repository_id": world.repository.pk,
        "user_id": world.member.pk,
        "token_id": ApiToken.mint(world.member, "a program", ApiToken.Scope.WRITE, None)[0].id,
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "what": "done",
        "action": "stop",
    }
    return Cast(world, {**people, "staff": operator}, names)


def _make_message(world: World) -> Message:
    message: Message = world.session.messages.create(seq=0, updated_seq=0, role="agent", created_at=timezone.now())
    return message


def make_full_cast() -> Cast:
    """Create the same, and a row of every model of the admin."""
    make_set("full")
    return make_cast()


def browsers(cast: Cast) -> dict[str, Client]:
    """Return a browser session for each role, logged in where there is a user."""
    found = {role: Client() for role in ROLES}
    for role, user in cast.people.items():
        if user is not None:
            found[role].force_login(user)
    return found


def attempt(ask: Callable[[], int]) -> int:
    """Return the status of a request, whose writes are rolled back."""
    with of_the_test():
        status = ask()
        transaction.set_rollback(True)
    return status
