"""How costs grow with the number of things; each point beside its floor, measured alternately."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Collection, Iterator

from django.test import Client
from django.urls import reverse

from executors_app.wire.executions import Observed
from sessions_app.models import Task
from tests.bench import screens, sweeps
from tests.bench.figures import Figure, Point
from tests.bench.world import World, fleet_of
from tests.support.fake_agentctl import plan_fleet


def curves(world: World, sizes: Collection[int], rounds: int) -> Iterator[Point]:
    """Yield all points of all curves."""
    for size in sizes:
        yield _sweep(world, size, rounds)
        yield _selection(world, size, rounds)
        yield _board(world, size, rounds)
        yield _of("session page, messages", size, screens.of_a_long_session(world, size, rounds))


def _of(curve: str, size: int, figure: Figure) -> Point:
    return Point(curve, size, figure.amount, figure.floor, figure.floor_amount)


def _sweep(world: World, size: int, rounds: int) -> Point:
    with fleet_of(size, "127.7.0.1") as fleet:
        world.fill(fleet)
        seconds, floor = asyncio.run(sweeps.beside_gets(fleet, rounds, Counter({Observed.ALIVE: size})))
    return Point("sweep, live sessions", size, seconds, "bare GETs", floor)


def _selection(world: World, size: int, rounds: int) -> Point:
    """Measure a sweep of 100 live sessions among ever more finished ones: only live sessions should cost time."""
    running = min(size, 100)
    with fleet_of(running, "127.8.0.1") as fleet:
        ended = plan_fleet(size, "127.9.0.1", 9)
        world.fill([*fleet, *ended[running:]])
        world.end(uuid.UUID(one.session_id) for one in ended[running:])
        seconds, floor = asyncio.run(sweeps.beside_gets(fleet, rounds, Counter({Observed.ALIVE: running})))
    return Point("sweep of 100, sessions in all", size, seconds, "bare GETs", floor)


def _board(world: World, size: int, rounds: int) -> Point:
    world.fill(plan_fleet(size, "127.9.0.1", 9))
    client, path = Client(SERVER_NAME="127.0.0.1"), reverse("board")
    client.force_login(world.user)

    def render() -> None:
        answer = client.get(path)
        assert answer.status_code == 200, answer.status_code

    def read() -> None:
        assert len(Task.objects.values_list("id", "title")) == size

    render()
    seconds, floor = map(min, asyncio.run(screens.in_turn_with_orm(rounds, render, read)))
    return Point("board, tasks", size, seconds, "reading the rows", floor)
