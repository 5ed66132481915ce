"""The files of a prompt reach an agent in a form that it accepts, or the turn fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, TurnFailed
from executors_app.agentctl.drivers.prompt_content import (
    describe_attachments,
    fit_blocks,
    image_files,
    prompt_text,
    split_images,
)
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost

IMAGE = {"type": "image", "mimeType": "image/png", "data": "eA=="}
TEXT: dict[str, Any] = {
    "type": "resource",
    "resource": {"uri": "attachment:///a%20b.md", "mimeType": "text/plain", "text": "```\ncode\n```\n"},
}
PDF: dict[str, Any] = {
    "type": "resource",
    "resource": {"uri": "attachment:///a.pdf", "mimeType": "application/pdf", "blob": "eA=="},
}
FENCED = "Attached file a b.md:\n````\n```\ncode\n```\n````"


def test_supported_blocks_are_passed_unchanged() -> None:
    assert fit_blocks([IMAGE, TEXT, PDF], {"image", "resource"}) == [IMAGE, TEXT, PDF]


def test_text_file_is_fenced_for_text_only_agents() -> None:
    assert fit_blocks([TEXT], ()) == [{"type": "text", "text": FENCED}]
    assert prompt_text("Look", [TEXT]) == f"Look\n\n{FENCED}"


@pytest.mark.parametrize(("block", "word"), [(IMAGE, "images"), (PDF, "files other than text")])
def test_unsupported_file_fails_the_turn(block: dict[str, Any], word: str) -> None:
    with pytest.raises(TurnFailed, match=f"does not accept {word}") as failed:
        fit_blocks([TEXT, block], ())
    assert failed.value.code == "attachment_unsupported"


def test_journal_names_the_files_without_their_contents() -> None:
    assert describe_attachments([IMAGE, TEXT]) == [
        {"name": "", "media_type": "image/png"},
        {"name": "a b.md", "media_type": "text/plain"},
    ]


async def test_demo_agent_says_what_it_received(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    started = await driver.start(request_for("demo"))

    await driver.prompt("m1", "remember pelican", [IMAGE, TEXT, PDF], lambda: None)

    assert started.capabilities["prompt"] == ["image", "resource"]
    assert host.agent_text() == "I received 1 image, 2 files.\nI will remember pelican.\n"


def test_images_are_private_files_during_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    images, others = split_images([IMAGE, TEXT, {**IMAGE, "mimeType": "image/jpeg"}])
    with image_files(images) as paths:
        assert [Path(path).name for path in paths] == ["1.png", "2.jpg"]
        assert Path(paths[0]).read_bytes() == b"x"
        assert Path(paths[0]).parent.stat().st_mode & 0o77 == 0
    assert (others, list(tmp_path.iterdir())) == ([TEXT], [])


def test_images_that_cannot_be_written_fail_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(TurnFailed, match="could not be written"), image_files([IMAGE]):
        pass


def test_prompt_without_images_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    with image_files([]) as paths:
        assert paths == []
