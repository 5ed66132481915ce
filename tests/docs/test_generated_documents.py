"""The generated documents are written when they differ, and never by a check."""

from __future__ import annotations

from pathlib import Path

from scripts.documents.generated import generate_documents, write_documents
from tests.services import ROOT


def test_documents_are_written_once_and_then_up_to_date(tmp_path: Path) -> None:
    documents = generate_documents()
    assert write_documents(tmp_path, check=False) == list(documents)
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in documents} == documents
    assert write_documents(tmp_path, check=False) == []
    assert write_documents(tmp_path, check=True) == []


def test_outdated_document_fails_the_check_and_stays_unchanged(tmp_path: Path) -> None:
    write_documents(tmp_path, check=False)
    (tmp_path / "docs" / "states.md").write_text("old")
    assert write_documents(tmp_path, check=True) == ["docs/states.md"]
    assert (tmp_path / "docs" / "states.md").read_text() == "old"


def test_generated_documents_are_up_to_date() -> None:
    documents = generate_documents()
    outdated = [name for name, text in documents.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert outdated == [], "run make docs"
