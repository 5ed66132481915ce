"""The pages of the sweeps."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from sessions_app.models import SweepRequest
from tests.pages.world import World, make_sweep, path_of


def test_before_the_first_sweep_it_says_so(ada: Client, world: World) -> None:
    assert "No sweep yet." in ada.get("/sweeps/").text


def test_a_sweep_tells_its_trigger_its_time_and_what_it_came_to(ada: Client, world: World) -> None:
    sweep = make_sweep(reattached=3, failed=1, skipped=0)
    html = ada.get("/sweeps/").text
    assert f"/sweeps/{sweep.id}/" in html
    assert "At the start of a supervisor" in html
    assert "42 ms" in html
    assert 'aria-label="3 reattached, 1 failed"' in html
    assert re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="0" width="([\d.]+)"', html) == [
        ("good", "0.00", "75.00"),
        ("bad", "75.00", "25.00"),
    ]
    assert "without a receipt" not in html


def test_a_sweep_shows_the_rows_of_the_own_teams_alone(ada: Client, bob: Client, world: World) -> None:
    session = world.resting_session()
    path = f"/sweeps/{make_sweep(session, loaded=1).id}/"
    mine, theirs = ada.get(path).text, bob.get(path).text
    for words in (path_of(session), "dead resume now", "Resume the agent (native)", ">loaded<"):
        assert words in mine
    assert path_of(session) not in theirs
    assert "None of your teams’ sessions" in theirs


def test_a_start_that_ended_after_its_sweep_is_told_by_its_first_receipt(ada: Client, world: World) -> None:
    session = world.resting_session()
    session.receipts.create(kind="fresh")
    sweep = make_sweep(session, skipped=1)
    sweep.rows.update(receipt_kind="")
    path = f"/sweeps/{sweep.id}/"
    assert ">started fresh<" not in ada.get(path).text
    for kind in ("injected", "failed"):
        session.receipts.create(kind=kind)
    html = ada.get(path).text
    assert ">told what was said<" in html
    assert ">failed<" not in html


def test_a_sweep_that_never_was_is_not_there(ada: Client, world: World) -> None:
    assert ada.get(f"/sweeps/{world.task().id}/").status_code == 404


@pytest.mark.parametrize("is_staff", [True, False])
def test_staff_alone_asks_for_a_sweep(is_staff: bool, ada: Client, world: World) -> None:
    world.ada.is_staff = is_staff
    world.ada.save()
    assert ("Sweep now" in ada.get("/sweeps/").text) is is_staff
    answer = ada.post("/sweeps/")
    assert answer.status_code == (302 if is_staff else 403)
    assert SweepRequest.objects.filter(by=world.ada, dry_run=False).exists() is is_staff
    assert ("A sweep was asked for" in ada.get("/sweeps/live/").json()["parts"]["sweeps"]) is is_staff
