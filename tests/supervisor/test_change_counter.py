"""Periodic checks pause while nothing changes, at most until the next deadline."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from django.utils import timezone

from sessions_app.models import Prompt, TaskSession
from sessions_app.starts import admission
from sessions_app.supervisor.change_counter import REST, ChangeCounter, seconds_until
from sessions_app.waits import expiry
from tests.supervisor.rows import running_session

HOUR = timedelta(hours=1)


async def test_rest_ends_with_the_next_change() -> None:
    changes = ChangeCounter()
    resting = asyncio.create_task(changes.rest(changes.count, longest=600))
    await asyncio.sleep(0)
    changes.record()
    await asyncio.wait_for(resting, 60)


async def test_change_since_the_last_read_leaves_no_rest() -> None:
    changes = ChangeCounter()
    seen = changes.count
    changes.record()
    await asyncio.wait_for(changes.rest(seen, longest=600), 60)


async def test_rest_without_a_change_ends_by_itself() -> None:
    changes = ChangeCounter()
    await asyncio.wait_for(changes.rest(changes.count, longest=0.01), 60)


async def test_checks_wait_while_an_agent_is_restarted() -> None:
    changes = ChangeCounter()
    with changes.urgent():
        resting = asyncio.create_task(changes.rest(changes.count, longest=0))
        for _ in range(10):
            changes.record()
            await asyncio.sleep(0)
        assert not resting.done()
    await asyncio.wait_for(resting, 60)


async def test_checks_do_not_wait_for_endless_starts() -> None:
    changes = ChangeCounter()
    with changes.urgent():
        await asyncio.wait_for(changes.rest(changes.count, longest=0), 60)


def test_nothing_due_means_the_longest_rest() -> None:
    now = timezone.now()
    assert seconds_until(None) == REST
    assert seconds_until(now + HOUR) == REST
    assert seconds_until(now - HOUR) == 0


@pytest.mark.django_db
def test_start_queue_is_checked_when_a_restart_is_due() -> None:
    session = running_session()
    now = timezone.now()
    assert admission.next_start_due(now) is None
    due = now + HOUR
    TaskSession.objects.filter(id=session.id).update(next_restart_at=due)
    assert admission.next_start_due(now) == due
    TaskSession.objects.filter(id=session.id).update(start_rank=1)
    assert seconds_until(admission.next_start_due(now)) == 0


@pytest.mark.django_db
def test_restart_that_falls_due_between_two_reads_is_next() -> None:
    session = running_session()
    last_check = timezone.now() - HOUR
    due = last_check + HOUR / 2
    TaskSession.objects.filter(id=session.id).update(next_restart_at=due)
    assert not admission.load_due_restarts(last_check)
    assert seconds_until(admission.next_start_due(last_check)) == 0
    assert admission.load_due_restarts(timezone.now()) == {(session.id, due)}


@pytest.mark.django_db
def test_restart_that_was_seen_as_due_does_not_end_the_rest() -> None:
    session = running_session()
    now = timezone.now()
    TaskSession.objects.filter(id=session.id).update(next_restart_at=now - HOUR)
    assert admission.load_due_restarts(now)
    assert admission.next_start_due(now) is None


@pytest.mark.django_db
def test_deadlines_are_checked_while_a_prompt_waits() -> None:
    session = running_session()
    assert expiry.next_deadline() is None
    Prompt.objects.create(session=session, message_id="p1", text="hello")
    assert seconds_until(expiry.next_deadline()) == 0
