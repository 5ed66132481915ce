"""Directories of agents are copied as plain data."""

from __future__ import annotations

import os
from pathlib import Path

from executors_app.untrusted_files import copy_directory


def test_copy_has_files_modes_and_links_and_nothing_else(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "copy"
    (source / "folder").mkdir(parents=True)
    (source / "folder/program").write_text("text\n")
    (source / "folder/program").chmod(0o4755)
    (source / "link").symlink_to("/etc/passwd")
    (source / "left").write_text("out\n")
    os.mkfifo(source / "pipe")
    copy_directory(source, into, leave_out=("left",))
    assert sorted(path.name for path in into.rglob("*")) == ["folder", "link", "program"]
    assert (into / "folder/program").stat().st_mode & 0o7777 == 0o755
    assert (into / "folder/program").read_text() == "text\n"
    assert (into / "link").readlink() == Path("/etc/passwd")


def test_holes_of_a_file_are_not_written_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "large").open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(1 << 40)
    copy_directory(source, tmp_path / "copy")
    copied = tmp_path / "copy/large"
    assert copied.stat().st_size == 1 << 40
    assert copied.stat().st_blocks < 1000
    with copied.open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(1 << 30)
        assert file.read(7) == b"middle\0"
