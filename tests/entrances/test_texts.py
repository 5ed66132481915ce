"""What reads a text of an agent or member as a whole, and a directory of the portable record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kandev.log_format import JsonFormatter
from sessions_app.accounts.teams import name_skeleton
from sessions_app.portable.reader import RecordReader
from sessions_app.recovery.rules.history import HistoryEntry, build_injection, prepend_history
from sessions_app.redaction.redactor import redact
from sessions_app.redaction.visible_text import make_visible
from sessions_app.turns.rules.transient_errors import retry_after_hint, transient_trouble
from sessions_app.workflows.loader.loading import load_workflow
from tests.entrances.shapes import SIZES, TEXTS, mixture, nested
from tests.growth import measure_growth

TEXT_SIZES = (2_000, 4_000, 8_000, 16_000, 32_000)


def log(text: str) -> str:
    """Return a text as a line of the log."""
    return JsonFormatter().format(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))


def tell_history(text: str) -> str:
    """Return a prompt with a history that consists of one text."""
    entries = [HistoryEntry("user", text), HistoryEntry("tool", text, text, text)]
    return prepend_history(build_injection(entries, len(entries), secrets=["secret-value"]), text)


READERS: dict[str, Callable[[str], Any]] = {
    "removing secrets": redact,
    "removing known secrets": lambda text: redact(text, ["a", "recaptcha_key", "secret-value"]),
    "making characters visible": make_visible,
    "comparing user names": name_skeleton,
    "finding a provider's error": lambda text: transient_trouble("agent_error", text),
    "finding when to retry": retry_after_hint,
    "the log": log,
    "history for a new agent": tell_history,
}


@pytest.mark.parametrize("reader", READERS)
def test_reading_a_text_costs_at_most_in_proportion_to_its_size(reader: str) -> None:
    for name, shape in TEXTS.items():
        growth = measure_growth(READERS[reader], shape, sizes=TEXT_SIZES)
        try:
            growth.assert_bounded()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize(
    "shape", ["[", "&a [*a, ", "- ", "{", "? ", "|\n", "'", '"', "\n", "a: b\n", "{{ a }}", "#"], ids=repr
)
def test_loading_a_workflow_costs_at_most_in_proportion_to_its_size(shape: str) -> None:
    growth = measure_growth(load_workflow, lambda size: shape * (size // len(shape)), sizes=TEXT_SIZES)
    growth.assert_bounded(budget=10)


def test_reading_a_portable_record_costs_at_most_in_proportion_to_its_size(tmp_path: Path) -> None:
    def write(size: int) -> str:
        stem = f"record-{size}"
        lines = [
            {"seq": seq, "type": "message.agent", "content": mixture(200), "more": nested(400)}
            for seq in range(size // 1000)
        ]
        (tmp_path / f"{stem}.messages.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in reversed(lines)))
        for ending in (".json", ".tokens.json"):
            (tmp_path / f"{stem}{ending}").write_text(json.dumps({"text": mixture(size), "value": nested(size)}))
        return stem

    def read(stem: str) -> None:
        reader = RecordReader(tmp_path, stem)
        reader.snapshot()
        reader.tokens()
        reader.log()

    measure_growth(read, write, sizes=SIZES).assert_bounded()
