"""The pages of sweeps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.models import SweepRequest, Task
from tests.pages.world import World, make_sweep, path_of


def test_empty_sweeps_page_says_so(ada: Client, world: World) -> None:
    assert "No sweeps yet" in ada.get("/sweeps/").text


def test_sweep_shows_its_trigger_duration_and_result(ada: Client, world: World) -> None:
    sweep = make_sweep()
    for _ in range(3):
        sweep.rows.create(session=world.session(), observed="alive", rule="alive_same_agent", agent_action="reattach")
    sweep.rows.create(session=world.session(), observed="dead", rule="gave_up", receipt_kind="failed")
    html = ada.get("/sweeps/").text
    assert f"/sweeps/{sweep.id}/" in html
    assert "When a supervisor started" in html
    assert "42 ms" in html
    assert 'aria-label="3 reattached, 1 failed"' in html
    assert re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="0" width="([\d.]+)"', html) == [
        ("good", "0.00", "75.00"),
        ("bad", "75.00", "25.00"),
    ]
    assert "no receipt" not in html


def test_sweep_rows_are_limited_to_own_teams(ada: Client, bob: Client, world: World) -> None:
    session = world.resting_session()
    path = f"/sweeps/{make_sweep(session, loaded=1).id}/"
    mine, theirs = ada.get(path).text, bob.get(path).text
    for words in (path_of(session), "dead resume now", "Resume the agent (native)", ">loaded<"):
        assert words in mine
    assert path_of(session) not in theirs
    assert "any of your teams’ sessions" in theirs


FAILURES = [
    {"rule": "worktree_missing", "session_state": "ERROR", "error_message": "The worktree is gone."},
    {"rule": "gave_up", "session_state": "FAILED", "error_message": "Started 5 times without success."},
    {"rule": "dead_resume_now", "session_state": "WAITING_FOR_INPUT", "receipt_kind": "failed"},
]


def test_every_sweep_count_links_to_that_many_rows(ada: Client, bob: Client, world: World) -> None:
    sweep = make_sweep(failed=7, skipped=2)
    for values in FAILURES:
        sweep.rows.create(session=world.session(), observed="dead", **values)
    damaged = {"rule": "damaged_row", "session_state": "ERROR?", "error_message": "Its state is unknown."}
    sweep.rows.create(session=world.session(), observed="unknown", **damaged)
    sweep.rows.create(session=world.session(), observed="alive", rule="alive_same_agent", agent_action="reattach")
    sweep.rows.create(session=world.session(), observed="dead", rule="dead_resume_now", agent_action="resume")
    for path in ("/sweeps/", f"/sweeps/{sweep.id}/", "/"):
        counts = re.findall(rf'href="/sweeps/{sweep.id}/\?came=(\w+)">(\d+) ', ada.get(path).text)
        shown = dict(counts) | ({"skipped": "1"} if path == "/" else {})  # the board omits rows without a result
        assert shown == {"failed": "3", "reattached": "1", "under_way": "1", "skipped": "1"}, path
        for kind, count in counts:
            rows = ada.get(f"/sweeps/{sweep.id}/?came={kind}").text.count('<th scope="row">')
            assert rows == int(count), (path, kind)
    assert "came=" not in bob.get("/sweeps/").text, "sessions that bob cannot see are not counted for him"


def test_late_start_is_described_by_its_first_receipt(ada: Client, world: World) -> None:
    session = world.resting_session()
    session.receipts.create(kind="fresh")
    sweep = make_sweep(session, skipped=1)
    sweep.rows.update(receipt_kind="")
    path = f"/sweeps/{sweep.id}/"
    assert ">still starting<" in table(ada, path)
    assert ">started fresh<" not in table(ada, path)
    for kind in ("injected", "failed"):
        session.receipts.create(kind=kind)
    html = table(ada, path)
    assert ">history included<" in html
    assert ">failed<" not in html


def table(client: Client, path: str) -> str:
    return client.get(path).text.partition("<table>")[2]


def three_rows(world: World) -> Any:
    """Create a sweep that found one execution alive, one dead and loaded, and one unknown."""
    mended, painted, counted = (world.resting_session() for _ in range(3))
    for session, title in ((painted, "Paint the bridge"), (counted, "Count 100% of the fish")):
        Task.objects.filter(id=session.task_id).update(title=title)
    sweep = make_sweep(mended, loaded=1, reattached=1, skipped=1)
    sweep.rows.create(session=painted, observed="alive", rule="alive_same_agent", agent_action="reattach")
    sweep.rows.create(session=counted, observed="unknown", rule="unknown_first")
    return sweep


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("", {"Fix the tests", "Paint the bridge", "Count 100% of the fish"}),
        ("seen=alive", {"Paint the bridge"}),
        ("came=loaded", {"Fix the tests"}),
        ("came=skipped", {"Count 100% of the fish"}),
        ("q=BRIDGE", {"Paint the bridge"}),
        ("q=%25", {"Count 100% of the fish"}),
        ("seen=dead&came=reattached", set()),
        ("seen=nonsense&came=nonsense&page=x", {"Fix the tests", "Paint the bridge", "Count 100% of the fish"}),
    ],
)
def test_sweep_rows_can_be_filtered(query: str, titles: set[str], ada: Client, world: World) -> None:
    sweep = three_rows(world)
    shown = table(ada, f"/sweeps/{sweep.id}/?{query}")
    assert {
        one for one in ("Fix the tests", "Paint the bridge", "Count 100% of the fish") if f">{one}</a>" in shown
    } == titles
    assert ("No session matches." in ada.get(f"/sweeps/{sweep.id}/?{query}").text) is (not titles)


def test_sweep_row_explains_its_rule_beside_the_previous_sweep(ada: Client, world: World) -> None:
    before = make_sweep(reattached=2)
    html = ada.get(f"/sweeps/{three_rows(world).id}/").text
    assert "No answer: check again before reporting it." in html
    assert "Previous sweep" in html
    assert f'href="/sweeps/{before.id}/"' in html


def test_long_sweep_is_paginated(ada: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_app.recovery.views.MAX_ROWS_SHOWN", 2)
    path = f"/sweeps/{three_rows(world).id}/"
    assert "Showing 2 of 3" in ada.get(path).text
    assert 'href="?page=2">Next' in ada.get(path).text
    assert table(ada, f"{path}?page=2").count("<tr>") == 2, "the head and the third row"


def test_dry_run_is_followed_and_shown_to_own_teams(ada: Client, bob: Client, world: World) -> None:
    session = world.running_session()
    world.ada.is_staff = True
    world.ada.save()
    path = ada.post("/sweeps/", {"dry_run": "1"}).headers["Location"]
    sweep_request = SweepRequest.objects.get(dry_run=True)
    assert path == f"/sweeps/requests/{sweep_request.id}/"
    assert "Waiting for the supervisor" in ada.get(path).text
    SweepRequest.objects.update(rows_done=3, rows_in_all=9)
    state = ada.get(f"{path}live/").json()["parts"]["request"]
    assert "3 of 9 sessions" in state
    assert '<progress class="progress" max="9" value="3"' in state
    row = {"session_id": str(session.id), "task_id": str(session.task_id), "task_title": "Fix the tests"}
    decided = {"observed": "dead", "rule": "dead_resume_now", "agent_action": "resume", "strategy": "native"}
    report = {"examined": 1, "duration_ms": 7, "sessions": [{**row, **decided, "reason": "", "error_message": ""}]}
    SweepRequest.objects.update(done_at=timezone.now(), report=report)
    mine, theirs = ada.get(path).text, bob.get(path).text
    assert "Nothing was changed. 1 session checked in 7 ms." in mine
    assert "Resume the agent (native)" in mine
    assert path_of(session) in mine
    assert path_of(session) not in theirs


def test_unknown_sweep_returns_404(ada: Client, world: World) -> None:
    assert ada.get(f"/sweeps/{world.task().id}/").status_code == 404


@pytest.mark.parametrize("is_staff", [True, False])
def test_only_staff_can_request_a_sweep(is_staff: bool, ada: Client, world: World) -> None:
    world.ada.is_staff = is_staff
    world.ada.save()
    assert ("Sweep now" in ada.get("/sweeps/").text) is is_staff
    answer = ada.post("/sweeps/")
    assert answer.status_code == (302 if is_staff else 403)
    assert SweepRequest.objects.filter(by=world.ada, dry_run=False).exists() is is_staff
    assert ("A sweep is in progress" in ada.get("/sweeps/live/").json()["parts"]["sweeps"]) is is_staff
