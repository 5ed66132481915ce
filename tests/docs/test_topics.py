"""The map of the topics contains every module of ``sessions_app`` once."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from tests.docs.documents import text_of
from tests.services import ROOT

APP: Final = ROOT / "sessions_app"
ENTRIES: Final = re.findall(
    r"`([\w/]+(?:\.py|/))`", "\n".join(re.findall(r"^\|.*\|$", text_of("topics.md"), re.MULTILINE))
)
MODULES: Final = sorted(
    path.relative_to(APP).as_posix() for path in APP.rglob("*.py") if "migrations" not in path.parts
)


def topics_of(module: str) -> list[str]:
    return [entry for entry in ENTRIES if entry == module or (entry.endswith("/") and module.startswith(entry))]


def test_every_module_is_in_exactly_one_topic() -> None:
    assert {module: found for module in MODULES if len(found := topics_of(module)) != 1} == {}


def test_topics_name_only_modules_that_exist() -> None:
    assert [entry for entry in ENTRIES if not (APP / entry).exists()] == []
    assert [entry for entry, count in Counter(ENTRIES).items() if count > 1] == []
