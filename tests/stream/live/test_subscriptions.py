"""Access is checked again while a socket is open: it closes when the user loses access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as Login
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import TaskSession
from sessions_app.stream.live import hub as hubs
from sessions_app.stream.live.authentication import Principal, Subscription, revoked_subscriptions
from tests.api.world import World, person
from tests.stream.live.sockets import connected, of_page, of_program, path_of, say


def change_password(world: World) -> None:
    user = User.objects.get(id=world.member.id)
    user.password = "another hash"
    user.save()


LOSSES = [
    ("left the team", of_page, lambda world: world.member.groups.clear(), 4404),
    ("left the team, by token", of_program, lambda world: world.member.groups.clear(), 4404),
    ("deactivated", of_page, lambda world: User.objects.filter(id=world.member.id).update(is_active=False), 4401),
    ("deactivated, by token", of_program, lambda world: User.objects.update(is_active=False), 4401),
    ("deleted", of_page, lambda world: User.objects.filter(id=world.member.id).delete(), 4401),
    ("logged out", of_page, lambda world: Login.objects.all().delete(), 4401),
    ("login ran out", of_page, lambda world: Login.objects.update(expire_date=timezone.now()), 4401),
    ("changed the password", of_page, change_password, 4401),
    ("token ended", of_program, lambda world: ApiToken.objects.update(expires_at=timezone.now()), 4401),
    ("token taken back", of_program, lambda world: ApiToken.objects.update(revoked_at=timezone.now()), 4401),
    ("session deleted", of_page, lambda world: TaskSession.objects.all().delete(), 4404),
    ("task deleted", of_page, lambda world: world.task.delete(), 4404),
]


@pytest.mark.parametrize(("caller", "loss", "code"), [row[1:] for row in LOSSES], ids=[row[0] for row in LOSSES])
async def test_socket_closes_when_its_user_loses_access(
    world: World, monkeypatch: pytest.MonkeyPatch, caller: Any, loss: Callable[[World], Any], code: int
) -> None:
    monkeypatch.setattr(hubs, "CHECK_EVERY", 0)
    headers = await run_in_database(caller, world.member)
    async with connected(path_of(world.session), headers) as socket:
        await socket.frame()
        await run_in_database(loss, world)
        assert await socket.close_code() == code
        assert not hubs.get_hub().subscribers


async def test_task_socket_closes_for_the_removed_member_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "CHECK_EVERY", 0)
    mine, theirs = await run_in_database(of_page, world.member), await run_in_database(of_page, world.staff)
    path = f"/ws/tasks/{world.task.id}/"
    async with connected(path, mine) as lost, connected(path, theirs) as kept:
        await lost.frame()
        await kept.frame()
        await run_in_database(world.member.groups.clear)
        assert await lost.close_code() == 4404
        await say(world.session)
        assert await kept.seqs(1) == [1]


def test_access_check_costs_the_same_for_any_number_of_sockets(world: World) -> None:
    def subscriptions(count: int) -> set[Subscription]:
        made = set()
        for number in range(count):
            user = person(f"member-{count}-{number}", world.team)
            token, _ = ApiToken.mint(user, "a program", ApiToken.Scope.READ, None)
            made.add(Subscription(Principal.of_token(token), world.task.id, world.session.id))
        return made

    requests = []
    for some in (subscriptions(1), subscriptions(40)):
        with CaptureQueriesContext(connection) as queries:
            assert revoked_subscriptions(some) == {}
        requests.append(len(queries))
    assert requests[0] == requests[1] <= 5
