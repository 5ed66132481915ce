"""Everything whose name users can see is documented, and nothing that no longer exists."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import fields
from enum import StrEnum
from types import ModuleType

import pytest
from django.core.management import load_command_class
from django.core.management.base import BaseCommand

from executors_app import encryption, plugins
from executors_app.runtimes.kubernetes import words as kubernetes_words
from executors_app.wire import errors as executor_errors
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutorStatus
from executors_app.wire.protocol import Code
from kandev.environment import TEST_SWITCHES, Environment, variable_name
from sessions_app.api import errors as api_errors
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.events import EVENT_CLASSES
from sessions_app.kernel.rules import states
from sessions_app.kernel.rules.states import DerivedStatus
from sessions_app.kernel.services import errors as session_errors
from sessions_app.mcp_server.arguments import MAX_WAIT
from sessions_app.mcp_server.results import Outcome
from sessions_app.mcp_server.tools import TOOLS
from sessions_app.open_waits import WAIT_SOURCES
from sessions_app.recovery.rules.recovery import RULES
from sessions_app.recovery.rules.resumability import UNREACHABLE, WORKTREE_MISSING, Mode, Policy, Reason
from sessions_app.recovery.rules.verification import ReceiptKind, Verified
from sessions_app.sessions.rules.situation_facts import AGENT_DIED
from sessions_app.stream.live.authentication import CloseCode
from sessions_app.stream.socket_actions import ACTIONS
from sessions_app.waits.rules.open_waits import Actor
from sessions_app.waits.rules.wait_keys import REQUESTED_KINDS
from tests.docs.documents import DOCS, documents, rows, text_of
from tests.services import ROOT

ANSWERS, STARTS, AGENTCTL = "Answers of the API", "What went wrong with a start", "agentctl's answers"


def codes_of(module: ModuleType, root: type[Exception]) -> set[str]:
    """Return the codes of the errors that a module defines."""
    defined = (cls for _, cls in inspect.getmembers(module, inspect.isclass) if issubclass(cls, root))
    return {cls.code for cls in defined if cls.__module__ == module.__name__}  # type: ignore[attr-defined]


def words_of(*enums: type[StrEnum]) -> set[str]:
    return {str(member) for enum in enums for member in enum}


def missing(words: Iterable[str], page: str) -> list[str]:
    """Return the words that a page does not name in a table, in code type, or alone in a cell."""
    text = text_of(page)
    return sorted(word for word in words if not re.search(rf"(`|\| |, ){re.escape(word)}(`| \||,|=)", text))


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("settings.md", {variable_name(entry) for entry in fields(Environment)}),
        ("README.md", TEST_SWITCHES),
        ("states.md", words_of(states.SessionState, states.TaskState, states.WorkState, states.DesiredState)),
        ("states.md", words_of(states.PromptState, states.RunState, ExecutorStatus, DerivedStatus)),
        ("states.md", {move for machine in states.MACHINES for move in machine.moves}),
        ("recovery.md", {rule.name for rule in RULES} | words_of(Mode, Reason)),
        ("codes.md", words_of(Reason, ReceiptKind, Verified, Code)),
        ("operate/restarts.md", words_of(Policy)),
        ("operate/inbox.md", words_of(AttentionKind)),
        ("operate/work.md", set(REQUESTED_KINDS)),
        ("operate/waits.md", {source.kind for source in WAIT_SOURCES} | words_of(Actor)),
        ("agents.md", set(plugins.agent_types())),
    ],
    ids=lambda value: value if isinstance(value, str) else min(value, default="none"),
)
def test_every_term_is_documented(page: str, words: set[str]) -> None:
    assert missing(words, page) == []


def test_every_api_error_code_is_documented_with_its_status() -> None:
    codes = codes_of(session_errors, session_errors.SessionsError) | set(api_errors.STATUS_BY_CODE)
    codes |= set(api_errors._EXECUTOR_CODES.values()) | api_errors._AGENTCTL_CODES | {"internal_error"}
    documented = rows("codes.md", ANSWERS)
    assert codes - set(documented) == set()
    framework = {"method_not_allowed": 405, "throttled": 429, "internal_error": 500}
    for code, row in documented.items():
        status = (
            framework.get(code, api_errors.STATUS_BY_CODE.get(code, 409)) if code in codes | set(framework) else None
        )
        assert row.split("|")[0].strip() == str(status), f"{code} is {status}"


def test_every_start_error_code_is_documented() -> None:
    codes = codes_of(executor_errors, ExecutorError) | codes_of(plugins, ExecutorError)
    codes |= codes_of(encryption, ExecutorError) | codes_of(kubernetes_words, ExecutorError)
    codes |= {Code.START_TIMEOUT, Code.INTERNAL_ERROR, Code.CONTEXT_MISMATCH}
    codes |= {UNREACHABLE, WORKTREE_MISSING, AGENT_DIED, Reason.GAVE_UP}
    assert codes - set(rows("codes.md", STARTS)) == set()


def test_exactly_the_agentctl_error_codes_are_documented() -> None:
    assert set(rows("codes.md", AGENTCTL)) == words_of(Code)


def test_exactly_the_existing_events_are_documented() -> None:
    documented = {name for name in rows("events.md") if name.startswith("session.")}
    assert documented == set(EVENT_CLASSES)


COMMANDS = {path.stem: path.parts[-4] for path in ROOT.glob("*_app/management/commands/[a-z]*.py")}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented_with_its_flags(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "operate").glob("*.md"))]
    text, command = "\n".join(pages), load_command_class(COMMANDS[name], name)
    assert re.search(rf"^\| `{name}\b", text, re.MULTILINE)
    plain = {action.dest for action in BaseCommand().create_parser("manage.py", "plain")._actions}
    own = [action for action in command.create_parser("manage.py", name)._actions if action.dest not in plain]
    flags = [flag for action in own for flag in action.option_strings]
    assert [flag for flag in flags if not re.search(rf"{flag}\b", text)] == []


def test_exactly_the_existing_make_targets_are_documented() -> None:
    verbs = set(re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    written = "\n".join(page.read_text(encoding="utf-8") for page in documents())
    named = set(re.findall(r"(?:^|`)make ([a-z]+(?:-[a-z]+)*)", written, re.MULTILINE))
    assert (verbs - named - {"help"}, named - verbs) == (set(), set())


def test_every_rule_cited_in_code_is_explained() -> None:
    source = "".join(
        path.read_text()
        for package in ("kandev", "executors_app", "sessions_app")
        for path in (ROOT / package).rglob("*.py")
    )
    rules: set[str] = set()
    for cited in re.findall(r"\brules? (\d+(?:(?:-|, | and )\d+)*)", source):
        for part in re.split(r", | and ", cited):
            first, _, last = part.partition("-")
            rules |= {str(number) for number in range(int(first), int(last or first) + 1)}
    assert rules - set(rows("rules.md")) == set()


def test_every_module_that_defines_errors_is_checked() -> None:
    """Errors in other modules would be missed by the tests above."""
    known = {executor_errors.__name__, plugins.__name__, encryption.__name__, session_errors.__name__}
    pattern = re.compile(r"^class \w+\((?:\w+\.)?(?:ExecutorError|SessionsError)\):", re.MULTILINE)
    for path in [*(ROOT / "executors_app").rglob("*.py"), *(ROOT / "sessions_app").rglob("*.py")]:
        if pattern.search(path.read_text()):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            assert importlib.import_module(module).__name__ in known, module


_TOOL = re.compile(r"^\| `(\w+)` \| (yes|no) \|", re.MULTILINE)


def test_table_of_tools_is_complete() -> None:
    assert _TOOL.findall(text_of("mcp.md")) == [(tool.name, "no" if tool.reads_only else "yes") for tool in TOOLS]


def test_table_of_outcomes_is_complete() -> None:
    table = text_of("mcp.md").split("| outcome | ", 1)[1].split("\n\n", 1)[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert named == [str(outcome) for outcome in Outcome]


def test_longest_wait_is_documented() -> None:
    assert f"at most {MAX_WAIT}" in text_of("mcp.md")


def test_every_socket_action_is_documented() -> None:
    assert [action for action in ACTIONS if f"`{action}`" not in text_of("events.md")] == []


def test_exactly_the_close_codes_are_documented() -> None:
    documented = {word for word in rows("events.md", "How to follow it") if word.isdigit()}
    assert documented == {str(code.value) for code in CloseCode}
