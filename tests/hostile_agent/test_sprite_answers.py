"""A sprite is under the agent's control, so nothing it returns is trusted: state, output, files."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.runtimes.sprites import organisation as api
from executors_app.runtimes.sprites import organisation as names
from executors_app.runtimes.sprites.organisation import CommandResult, Organisation
from executors_app.wire.errors import ExecutorError
from tests.executors.harness import row_of, spec_for
from tests.sprites.conftest import harness, repository, sprites_api  # noqa: F401 - fixtures
from tests.sprites.harness import SpritesHarness

LINE = b'{"seq": 1, "epoch": "e", "ts": 1, "kind": "log", "text": "kept"}\n'
SEGMENT = "journal/00000000000000000001.jsonl"


def _pipe(state: Path, _outside: Path) -> None:
    os.mkfifo(state / "journal/pipe")


def _link_to_a_file(state: Path, outside: Path) -> None:
    (state / "journal/00000000000000000099.jsonl").symlink_to(outside / "secret")


def _link_to_a_directory(state: Path, outside: Path) -> None:
    (state / "journal/aside").symlink_to(outside)


def _token_is_a_link(state: Path, outside: Path) -> None:
    (state / "token.json").unlink(missing_ok=True)
    (state / "token.json").symlink_to(outside / "secret")


@pytest.mark.parametrize("tamper", [_pipe, _link_to_a_file, _link_to_a_directory, _token_is_a_link])
async def test_journal_is_read_past_links_and_pipes(
    harness: SpritesHarness,  # noqa: F811
    tmp_path: Path,
    tamper: Callable[[Path, Path], None],
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text('{"resume_token": "secret"}\n')
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    harness.kill(spec)
    state = Path(names.sprite_root(spec.execution_id)) / "state"
    (state / SEGMENT).write_bytes(LINE)
    tamper(state, outside)
    row = row_of(harness, spec, launched)
    assert [line["text"] for line in harness.runtime.unread_journal(row, 0, "")] == ["kept"]
    assert harness.runtime.resume_token(row) is None


def _packed(*entries: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        journal = tarfile.TarInfo(SEGMENT)
        journal.size = len(LINE)
        archive.addfile(journal, io.BytesIO(LINE))
        for entry in entries:
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    return buffer.getvalue()


def _entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, target, size
    return entry


HOSTILE = {
    "garbage": b"garbage" * 1000,
    "torn": _packed(_entry("journal/more", size=100_000))[:20_000],
    "a path outside": _packed(_entry("../../planted", size=10)),
    "an absolute path": _packed(_entry("/planted", size=10)),
    "a file through a link": _packed(_entry("journal/x", tarfile.SYMTYPE, "."), _entry("journal/x/../../../planted")),
    "a hard link": _packed(_entry("journal/x", tarfile.LNKTYPE, "../../outside/secret")),
    "a device": _packed(_entry("journal/x", tarfile.CHRTYPE)),
    "a file in place of the journal": _packed(_entry("journal", size=10)),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_state_of_a_sprite_is_unpacked_as_plain_files_alone(
    harness: SpritesHarness,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    harness.kill(spec)

    async def answer(*_: object, **__: object) -> CommandResult:
        return CommandResult(0, HOSTILE[name], "")

    monkeypatch.setattr(Organisation, "run", answer)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    try:
        lines = harness.runtime.unread_journal(row_of(harness, spec, launched), 0, "")
    except ExecutorError:
        lines = []
    assert [line["text"] for line in lines] in ([], ["kept"])
    assert list(folder.iterdir()) == []
    assert not list(tmp_path.rglob("planted"))


async def test_output_of_a_sprite_is_bounded(
    harness: SpritesHarness,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "OUTPUT_LIMIT", 1 << 20)
    spec = spec_for(harness)
    await harness.runtime.launch(spec)
    async with api.open_organisation() as organisation:
        name = names.sprite_name(spec.execution_id)
        assert len((await organisation.run(name, "head", "-c", "1000000", "/dev/zero")).output) == 1_000_000
        with pytest.raises(ExecutorError, match="more than"):
            await organisation.run(name, "head", "-c", "4000000", "/dev/zero")
        with pytest.raises(ExecutorError, match="more than 10 bytes"):
            await organisation.read(name, "/proc/self/status", timeout=10, limit=10)
