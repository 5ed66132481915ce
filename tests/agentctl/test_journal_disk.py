"""A full or failing disk pauses the agent; nothing is lost and nothing crashes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app.agentctl.journal import RESERVE_BYTES, Journal, SegmentStore
from executors_app.wire.protocol import JournalKind
from tests.agentctl.journals import last_segment, opened, seqs, shown
from tests.waiting import PATIENCE, eventually_async


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a mounted file system of 3 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", where], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield where
    subprocess.run(["umount", where], check=True)


async def _write_until_it_fails(journal: Journal) -> None:
    while not journal.is_full:
        journal.append(JournalKind.MESSAGE_AGENT, text="x" * 90_001)
        await eventually_async(lambda: journal.is_full or journal.shown_seq == journal.last_seq)


async def test_full_disk_is_waited_out(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (1 << 20))
    async with opened(small_disk / "journal") as journal:
        await _write_until_it_fails(journal)
        entry = journal.append(JournalKind.TURN_COMPLETED, message_id="m", stop_reason="end_turn")
        for _ in range(200):  # more than the freed reserve can hold
            journal.append(JournalKind.MESSAGE_AGENT, text="y" * 9_001)
        await eventually_async(lambda: not (small_disk / "journal" / "reserve").exists())
        waiting = asyncio.create_task(journal.wait_for_room())
        await eventually_async(lambda: journal.is_full)
        assert not waiting.done()

        filler.unlink()

        await asyncio.wait_for(journal.wait_until_durable(journal.last_seq), PATIENCE)
        await asyncio.wait_for(waiting, PATIENCE)
        lines = list(shown(journal))
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[entry - 1]["kind"] == JournalKind.TURN_COMPLETED
    assert any("could not be written" in line.get("text", "") for line in lines)
    assert seqs(small_disk / "journal")[-1] >= len(lines)


async def test_last_lines_fit_into_the_reserve(small_disk: Path) -> None:
    async with opened(small_disk / "journal") as journal:
        (small_disk / "filler").write_bytes(b"x" * (1 << 20))
        await _write_until_it_fails(journal)

        last = journal.append(JournalKind.AGENT_EXITED, exit_code=0)
        await asyncio.wait_for(journal.wait_until_durable(last), PATIENCE)
        assert [line["seq"] for line in shown(journal) if line["kind"] == JournalKind.AGENT_EXITED] == [last]


async def test_clean_end_gives_the_reserve_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.append(JournalKind.MESSAGE_AGENT, text="the last words")
        assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    assert not (tmp_path / "reserve").exists()
    async with opened(tmp_path):
        assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES


async def test_end_on_a_failing_disk_keeps_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: SegmentStore) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with opened(tmp_path) as journal:
        await journal.flush()
        monkeypatch.setattr(SegmentStore, "sync", fail)
        journal.append(JournalKind.AGENT_EXITED, exit_code=0)
    assert (tmp_path / "reserve").exists()


async def test_file_size_limit_is_waited_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        with _file_size_limit(200_000):
            await _write_until_it_fails(journal)

        await asyncio.wait_for(journal.wait_until_durable(journal.last_seq), PATIENCE)
        lines = list(shown(journal))
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["text"] == "the journal is written again"


def test_failed_write_leaves_no_part_of_its_lines(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, segment_bytes=1 << 20, boot_id="boot", seen=lambda line: None)
    store.write([b"first\n"], 1)
    with _file_size_limit(100), pytest.raises(OSError, match="File too large"):
        store.write([b"second\n", b"x" * 200 + b"\n"], 2)
    assert last_segment(tmp_path).read_bytes() == b"first\n"
    store.close()


@contextlib.contextmanager
def _file_size_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("written_before", [0, 5])
async def test_failed_sync_is_never_repeated_on_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_before: int
) -> None:
    failed: list[int] = []

    def fails_once(fd: int) -> None:  # a real disk cannot be made to fail here
        if not failed:
            failed.append(os.dup(fd))  # kept open so that its inode number is not reused
            raise OSError(errno.EIO, "Input/output error")
        assert not os.path.sameopenfile(fd, failed[0])

    async with opened(tmp_path) as journal:
        for _ in range(written_before):
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="before"))
        monkeypatch.setattr(os, "fdatasync", fails_once)
        last = journal.append(JournalKind.TURN_COMPLETED, message_id="m", stop_reason="end_turn")
        await asyncio.wait_for(journal.wait_until_durable(last + 1), PATIENCE)
        assert [line["seq"] for line in shown(journal)][:last] == list(range(1, last + 1))

    os.close(failed[0])
    async with opened(tmp_path) as journal:
        assert seqs(tmp_path) == list(range(1, journal.last_seq + 1))
        assert journal.last_seq >= last


async def test_lines_shown_before_a_failed_sync_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync, failures = os.fdatasync, [OSError(errno.EIO, "Input/output error")]

    def fails_once(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        fdatasync(descriptor)

    async with opened(tmp_path) as journal:
        for number in range(5):
            journal.append(JournalKind.MESSAGE_AGENT, text=f"piece {number}")
            await journal.wait_for_lines(number)
        monkeypatch.setattr(os, "fdatasync", fails_once)
        last = journal.append(JournalKind.TURN_COMPLETED, message_id="m", stop_reason="end_turn")
        await asyncio.wait_for(journal.wait_until_durable(last), PATIENCE)
        assert [line["seq"] for line in shown(journal)][:last] == list(range(1, last + 1))

    assert seqs(tmp_path)[:last] == list(range(1, last + 1))
