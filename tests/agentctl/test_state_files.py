"""What agentctl has stored survives a power failure: each write is on disk, in an order that leaves no half file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from executors_app.agentctl.state_files import DurableStore, replace_file
from tests.agentctl.journals import opened


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each sync and each rename adds its name."""
    noted: list[str] = []
    fsync, fdatasync, rename = os.fsync, os.fdatasync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        noted.append("directory synced" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file synced")

    def noted_fdatasync(descriptor: int) -> None:
        fdatasync(descriptor)
        noted.append(f"{os.fstat(descriptor).st_size} bytes synced")

    def noted_rename(path: Path, target: Path) -> Path:
        noted.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "fdatasync", noted_fdatasync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    return noted


def test_file_is_synced_before_it_gets_its_name_and_its_directory_after(tmp_path: Path, steps: list[str]) -> None:
    replace_file(tmp_path / "token", b"content")
    assert (tmp_path / "token").read_bytes() == b"content"
    assert steps == ["file synced", "renamed", "directory synced"]


def test_stored_value_is_on_disk_when_the_call_returns(tmp_path: Path, steps: list[str]) -> None:
    store = DurableStore(tmp_path / "memory.jsonl")
    assert steps.pop() == "directory synced"
    store.put("prompt", "m1", True)
    assert steps == [f"{(tmp_path / 'memory.jsonl').stat().st_size} bytes synced"]
    store.close()


async def test_new_journal_has_its_name_on_disk_before_its_first_line(tmp_path: Path, steps: list[str]) -> None:
    async with opened(tmp_path):
        assert steps == ["file synced", "renamed", *["directory synced"] * 2], "the epoch, and then the segment"
