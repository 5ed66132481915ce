"""``manage.py write_docs`` in a temporary directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from sessions_app.management.commands.write_docs import generate_documents
from tests.docs.documents import DOCS


@pytest.fixture
def docs(tmp_path: Path, settings: Any) -> Path:
    settings.BASE_DIR = tmp_path
    return tmp_path / "docs"


def test_documents_are_written_once_and_then_up_to_date(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("write_docs")
    assert {path.name: path.read_text(encoding="utf-8") for path in docs.iterdir()} == generate_documents()
    assert "wrote docs/recovery.md" in capsys.readouterr().out
    call_command("write_docs")
    call_command("write_docs", "--check")
    assert not capsys.readouterr().out


def test_outdated_document_fails_the_check_and_stays_unchanged(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("write_docs")
    (docs / "states.md").write_text("old")
    with pytest.raises(SystemExit) as ended:
        call_command("write_docs", "--check")
    assert ended.value.code == 1
    assert "docs/states.md" in capsys.readouterr().err
    assert (docs / "states.md").read_text() == "old"


@pytest.mark.parametrize("name", sorted(generate_documents()))
def test_generated_document_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generate_documents()[name], "run manage.py write_docs"
