"""A client that does not acknowledge gets nothing more and is closed; one that acknowledges gets everything."""

from __future__ import annotations

import uuid

import pytest

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.stream.live import hub as hubs
from sessions_app.stream.live.hub import AckWindow
from tests.api.world import World
from tests.stream.live.sockets import Headers, connected, of_page, path_of, say, wait_until
from tests.waiting import PATIENCE

ONE, OTHER = uuid.uuid4(), uuid.uuid4()


@pytest.fixture
def member(world: World) -> Headers:
    return of_page(world.member)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MAX_UNACKED_EVENTS", 50)
    monkeypatch.setattr(hubs, "MAX_UNACKED_BYTES", 20_000)
    monkeypatch.setattr(hubs, "ACK_TIMEOUT", 60)  # so that a busy machine makes no client late


@pytest.fixture
def short_ack_timeout(small_buffers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "ACK_TIMEOUT", 0.2)


async def test_client_that_never_acknowledges_is_closed_at_a_full_window(
    world: World, member: Headers, short_ack_timeout: None
) -> None:
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        await say(world.session, 40)
        assert await socket.seqs(40) == list(range(1, 41))
        await say(world.session, 10)
        assert await socket.seqs(10) == list(range(41, 51))
        await say(world.session, 10)
        assert (await socket.wire.receive_output(PATIENCE)) == {"type": "websocket.close", "code": 4408}
        await say(world.session, 10)
        assert await socket.is_silent()


async def test_long_backlog_is_cut_and_continues_after_reconnecting(
    world: World, member: Headers, short_ack_timeout: None
) -> None:
    await say(world.session, 450)
    seen: list[int] = []
    for _ in range(3):
        async with connected(path_of(world.session, f"?after={len(seen)}"), member) as socket:
            await socket.frame()
            while (message := await socket.wire.receive_output(PATIENCE))["type"] == "websocket.send" and len(
                seen
            ) < 450:
                seen.append(int(message["text"].partition('"seq":')[2].partition(",")[0]))
    assert seen == list(range(1, 451))


async def test_bytes_count_towards_the_window(world: World, member: Headers, short_ack_timeout: None) -> None:
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        await say(world.session, 3, size=9000)
        assert await socket.seqs(3) == [1, 2, 3]
        assert await socket.close_code() == 4408


async def test_client_that_acknowledges_gets_everything(world: World, member: Headers, small_buffers: None) -> None:
    await say(world.session, 500)
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        for first in range(1, 1000, 20):
            if first == 401:
                await say(world.session, 500)
            assert await socket.seqs(20) == list(range(first, first + 20))
            await socket.tell({"type": "ack", "seq": first + 19})
        assert await socket.is_silent()


async def test_late_acknowledgement_within_the_timeout_misses_nothing(
    world: World, member: Headers, small_buffers: None
) -> None:
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        await say(world.session, 60)
        await wait_until(
            lambda: not any(one.is_live for one in hubs.get_hub().subscribers), "the socket has fallen behind"
        )
        await say(world.session, 60)
        assert await socket.seqs(60) == list(range(1, 61))
        assert await socket.is_silent()
        await socket.tell({"type": "ack", "seq": 60})
        assert await socket.seqs(60) == list(range(61, 121))
        await socket.tell({"type": "ack", "seq": 120})
        await wait_until(lambda: all(one.is_live for one in hubs.get_hub().subscribers), "the socket is live again")
        await say(world.session, 1)
        assert await socket.seqs(1) == [121]


async def test_slow_client_does_not_delay_others(world: World, member: Headers, small_buffers: None) -> None:
    async with connected(path_of(world.session), member) as slow, connected(path_of(world.session), member) as quick:
        await slow.frame()
        await quick.frame()
        for first in (1, 51, 101):
            await say(world.session, 50)
            assert await quick.seqs(50) == list(range(first, first + 50))
            await quick.tell({"type": "ack", "seq": first + 49})
        assert await run_in_database(world.session.events.count) == 150


def is_full(account: AckWindow) -> bool:
    return account.is_full


def test_acknowledgement_covers_all_events_sent_before_it(small_buffers: None) -> None:
    account = AckWindow()
    for number in range(1, 26):
        account.record_sent(ONE, number, 1, 10)
        account.record_sent(OTHER, number, 1, 10)
    assert is_full(account)
    account.ack(OTHER, 25)
    for number in range(26, 75):
        account.record_sent(ONE, number, 1, 10)
    assert not is_full(account)
    account.record_sent(ONE, 75, 1, 10)
    assert is_full(account)


@pytest.mark.parametrize(("session_id", "seq"), [(ONE, 0), (OTHER, 50), (uuid.uuid4(), 10**9)])
def test_acknowledgement_of_an_unsent_event_is_ignored(small_buffers: None, session_id: uuid.UUID, seq: int) -> None:
    account = AckWindow()
    account.record_sent(ONE, 50, 50, 500)
    account.ack(session_id, seq)
    assert account.is_full


def test_acknowledging_ahead_gives_no_credit(small_buffers: None) -> None:
    account = AckWindow()
    account.record_sent(ONE, 50, 50, 500)
    account.ack(ONE, 10**9)
    assert not is_full(account)
    account.record_sent(ONE, 100, 50, 500)
    assert is_full(account)


def test_ack_window_keeps_a_bounded_number_of_marks(small_buffers: None) -> None:
    account = AckWindow()
    for number in range(1, 50):
        account.record_sent(ONE, number, 1, 1)
    assert len(account._marks) <= 50
    account.ack(ONE, 49)
    assert not account._marks
