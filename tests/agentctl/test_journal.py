"""The journal keeps its order and its guarantees, and recovers from what a crash leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executors_app.agentctl.journal import Journal, JournalLimits
from executors_app.wire.journal_files import ASIDE, META_FILE, list_segments, read_epoch, read_lines
from executors_app.wire.protocol import JournalKind
from tests.agentctl.journals import held_syncs, last_segment, opened, seqs, shown, write_lines
from tests.waiting import PATIENCE, eventually_async

FLOOD = """
import asyncio, sys
from pathlib import Path
from executors_app.agentctl.journal import Journal

async def flood():
    journal = Journal(Path(sys.argv[1]))
    while True:
        for size in range(200):
            journal.append("message.agent", text="x" * size * 20)
        await journal.wait_for_room()
        await journal.wait_for_lines(journal.shown_seq)
        print(journal.shown_seq, flush=True)

asyncio.run(flood())
"""


async def test_line_numbers_start_at_one_and_continue_after_a_restart(tmp_path: Path) -> None:
    epoch = await write_lines(tmp_path, 3)

    async with opened(tmp_path) as journal:
        assert journal.epoch == epoch == read_epoch(tmp_path)
        assert journal.append(JournalKind.LOG, text="again") == 4
        await journal.wait_for_lines(3)
        lines = list(shown(journal))

    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert lines[0].items() >= {"epoch": epoch, "kind": "message.agent", "text": "line 0"}.items()
    assert lines[3]["ts"] > 1_600_000_000


async def test_restart_replays_the_stored_lines(tmp_path: Path) -> None:
    await write_lines(tmp_path, 3)
    seen: list[int] = []

    async with opened(tmp_path, seen=lambda line: seen.append(line["seq"])):
        pass

    assert seen == [1, 2, 3]


async def test_decisive_line_is_durable_before_it_is_shown(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        with held_syncs(journal) as release:
            journal.append(JournalKind.MESSAGE_AGENT, text="said")
            journal.append(JournalKind.TURN_COMPLETED, message_id="m", stop_reason="end_turn")
            journal.append(JournalKind.LOG, text="behind it")

            await journal.wait_for_lines(0)
            assert [line["kind"] for line in shown(journal)] == [JournalKind.MESSAGE_AGENT]

            release.set()
            await journal.wait_until_durable(3)
            assert len(list(shown(journal))) == 3


async def test_text_is_synced_although_nobody_waits_for_it(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(sync_delay=0.05)) as journal:
        synced = _count_syncs(journal)
        journal.append(JournalKind.MESSAGE_AGENT, text="said")

        await eventually_async(lambda: bool(synced))

        assert synced == [1]


async def test_pieces_of_text_share_one_sync_which_is_made_for_whoever_waits(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(sync_delay=600)) as journal:
        synced = _count_syncs(journal)
        for number in range(5):
            journal.append(JournalKind.MESSAGE_AGENT, text=f"piece {number}")
            await journal.wait_for_lines(number)
        assert synced == []

        await asyncio.wait_for(journal.wait_until_durable(5), PATIENCE)

        assert synced == [5]


PATIENT = JournalLimits(sync_delay=600, closing=10)


async def test_text_is_in_the_file_when_it_is_shown(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=PATIENT) as journal:
        journal.append(JournalKind.LOG, text="the segment has begun")
        await journal.flush()
        entry = journal.append(JournalKind.MESSAGE_AGENT, text="said")
        await journal.wait_for_lines(entry - 1)
        assert seqs(tmp_path) == [1, entry], "so that it survives the death of agentctl"


@pytest.mark.parametrize("kind", [JournalKind.MESSAGE_AGENT, JournalKind.TURN_COMPLETED])
async def test_flush_syncs_whatever_was_appended(tmp_path: Path, kind: JournalKind) -> None:
    async with opened(tmp_path, limits=PATIENT) as journal:
        synced = _count_syncs(journal)
        for number in range(1, 4):
            journal.append(kind, text="said", message_id="m", stop_reason="end_turn")
            await journal.flush()  # gives up if the line is not synced in time
            assert synced[-1:] == [number]


async def test_much_text_is_synced_without_a_delay(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(sync_delay=600)) as journal:
        for _ in range(20):
            journal.append(JournalKind.MESSAGE_AGENT, text="x" * 40_000)

        await asyncio.wait_for(journal.wait_for_room(), PATIENCE)
        assert journal.shown_seq > 0


async def test_segment_is_synced_before_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[int, int] = {}
    fdatasync = os.fdatasync

    def noted(descriptor: int) -> None:
        fdatasync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fdatasync", noted)
    async with opened(tmp_path, limits=JournalLimits(segment=1000, sync_delay=600)) as journal:
        for number in range(30):
            journal.append(JournalKind.MESSAGE_AGENT, text="x" * 100)
            await journal.wait_for_lines(number)
        files = [path.stat() for _, path in list_segments(tmp_path)[:-1]]

    assert len(files) > 3
    assert [synced.get(file.st_ino) for file in files] == [file.st_size for file in files]


def _count_syncs(journal: Journal) -> list[int]:
    """Return a list to which each sync adds the number of lines in the journal."""
    synced: list[int] = []
    sync = journal._store.sync

    def counted() -> None:
        sync()
        synced.append(journal.last_seq)

    journal._store.sync = counted  # type: ignore[method-assign]
    return synced


TAILS = {
    "half a line": b'{"seq":4,"epoch":"',
    "a whole line without its newline": b'{"seq":4,"epoch":"EPOCH","ts":1,"kind":"log"}',
    "zeros": b"\0" * 4096,
    "zeros and a newline": b"\0" * 100 + b"\n",
    "garbage lines": b"what\nis\nthis",
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
async def test_torn_tail_is_truncated_and_the_epoch_continues(tmp_path: Path, tail: bytes) -> None:
    epoch = await write_lines(tmp_path, 3)
    with last_segment(tmp_path).open("ab") as file:
        file.write(tail.replace(b"EPOCH", epoch.encode()))
    assert seqs(tmp_path) == [1, 2, 3]

    async with opened(tmp_path) as journal:
        assert journal.epoch == epoch
        assert journal.append(JournalKind.LOG, text="next") == 4

    assert seqs(tmp_path) == [1, 2, 3, 4]


async def test_damage_in_the_middle_starts_an_epoch_and_keeps_readable_lines(tmp_path: Path) -> None:
    epoch = await write_lines(tmp_path, 5)
    file = last_segment(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join((*lines[:2], b"#" * len(lines[2]), *lines[3:])))

    async with opened(tmp_path) as journal:
        assert journal.epoch != epoch
        assert journal.append(JournalKind.LOG, text="anew") == 1

    assert [(line["epoch"] == epoch, line["seq"]) for line in read_lines(tmp_path, 1, epoch)] == [
        (True, 2),
        (True, 5),
        (False, 1),
    ]


@pytest.mark.parametrize("harm", ["missing segment", "missing meta", "empty meta"])
async def test_broken_journal_never_reuses_a_seq_within_an_epoch(tmp_path: Path, harm: str) -> None:
    epoch = await write_lines(tmp_path, 3)
    match harm:
        case "missing segment":
            last_segment(tmp_path).unlink()
        case "missing meta":
            (tmp_path / META_FILE).unlink()
        case "empty meta":
            (tmp_path / META_FILE).write_bytes(b"")

    async with opened(tmp_path) as journal:
        assert journal.epoch != epoch
        assert journal.last_seq == 0


async def test_new_kernel_boot_starts_an_epoch_and_old_lines_stay_readable(tmp_path: Path) -> None:
    old = await write_lines(tmp_path, 4, boot_id="before")
    assert await write_lines(tmp_path, 0, boot_id="before") == old

    new = await write_lines(tmp_path, 2, boot_id="after")

    assert new != old
    assert seqs(tmp_path, 1, new) == [2]
    assert seqs(tmp_path, 2, old) == [3, 4, 1, 2]
    assert seqs(tmp_path, 2, "../../etc") == [1, 2]
    assert seqs(tmp_path, 2, "unheard-of") == [1, 2]


async def test_number_of_kept_epochs_is_limited(tmp_path: Path) -> None:
    for boot in range(7):
        await write_lines(tmp_path, 1, boot_id=str(boot))

    assert len(list((tmp_path / ASIDE).iterdir())) == 4


async def test_segments_rotate_and_are_deleted_once_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(segment=1000)) as journal:
        for _ in range(30):
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x" * 100))
        before = list_segments(tmp_path)
        assert len(before) > 3
        assert [line["seq"] for line in shown(journal)] == list(range(1, 31))

        boundary = before[2][0]
        journal.ack(boundary - 2)
        assert journal.first_seq == before[1][0]
        journal.ack(boundary - 1)
        assert journal.first_seq == boundary
        assert [line["seq"] for line in shown(journal, boundary + 3)] == list(range(boundary + 4, 31))

        journal.ack(10**9)
        assert len(list_segments(tmp_path)) == 1

    assert seqs(tmp_path)[-1] == 30
    async with opened(tmp_path) as journal:
        assert journal.last_seq == 30


async def test_line_that_is_not_acknowledged_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(segment=1)) as journal:
        for number in range(4):
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x"))
            if number == 0:
                journal.ack(1000)  # as of another epoch: only what has been shown can have been stored
        journal.ack(2)
        assert journal.first_seq == 3
        assert seqs(tmp_path) == [3, 4]


async def test_full_journal_blocks_the_agent_until_lines_are_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(cap=20_000)) as journal:
        while not journal.is_full:
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x" * 200))
        waiting = asyncio.create_task(journal.wait_for_room())
        await eventually_async(lambda: "reached its cap" in list(shown(journal))[-1]["text"])
        assert not waiting.done()

        journal.ack(journal.shown_seq)

        await asyncio.wait_for(waiting, PATIENCE)
        await eventually_async(lambda: "has room again" in list(shown(journal, journal.first_seq - 1))[-1]["text"])


async def test_too_many_lines_not_yet_durable_block_the_agent(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        with held_syncs(journal) as release:
            await journal.wait_for_room()
            for _ in range(5):
                journal.append(JournalKind.LOG, text="x" * (1 << 17))
            waiting = asyncio.create_task(journal.wait_for_room())
            await journal.wait_for_lines(4)
            assert not waiting.done()

            release.set()
            await asyncio.wait_for(waiting, PATIENCE)


async def test_reader_from_any_position_gets_exactly_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=JournalLimits(segment=300_000)) as journal:
        for number in range(2000):
            last = journal.append(JournalKind.LOG, text="x" * (number % 700))
            if number % 50 == 0:
                await journal.wait_until_durable(last)
        await journal.wait_until_durable(last)

        for after in (0, 1, 49, 50, 51, 777, 1234, 1998, 1999, 2000):
            assert [line["seq"] for line in shown(journal, after)] == list(range(after + 1, 2001))
        assert len(journal.read(0, limit_bytes=1)) == 1

    async with opened(tmp_path) as journal:
        assert [line["seq"] for line in shown(journal, 1500)] == list(range(1501, 2001))


async def test_kill_during_a_flood_leaves_no_gap_and_loses_nothing_shown(tmp_path: Path) -> None:
    for _ in range(3):
        last_reported = await asyncio.to_thread(_flood_and_kill, tmp_path)
        kept = seqs(tmp_path)
        assert kept == list(range(1, len(kept) + 1))
        assert len(kept) >= last_reported > 0

    async with opened(tmp_path) as journal:
        assert journal.append(JournalKind.LOG, text="on") > last_reported


def _flood_and_kill(directory: Path) -> int:
    with subprocess.Popen([sys.executable, "-c", FLOOD, str(directory)], stdout=subprocess.PIPE, text=True) as flood:
        assert flood.stdout
        lines = [flood.stdout.readline() for _ in range(4)]
        flood.send_signal(signal.SIGKILL)
        lines += [line for line in flood.stdout if line.endswith("\n")]
    return int(lines[-1])
