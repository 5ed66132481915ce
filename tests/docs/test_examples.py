"""The examples of extend.md work: they are discovered like any plugin."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from executors_app import plugins
from executors_app.agents import AgentType
from executors_app.runtimes import Runtime
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import LaunchSpec
from tests.docs.documents import DOCS

SPEC = LaunchSpec(execution_id="e", session_id="s", task_id="t", repository_path="", base_branch="", auth_token="")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield a package like ours with the examples added."""
    place = tmp_path / "examples_of_the_documents"
    place.mkdir()
    for path in (DOCS / "examples").glob("*.py"):
        (place / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(place.name)
    for name in [name for name in sys.modules if name.startswith(place.name)]:
        del sys.modules[name]


@pytest.fixture
def runtime(package: ModuleType) -> Any:
    (found,) = plugins._found(package, "RUNTIME").values()
    return found


def test_agent_type_is_discovered(package: ModuleType) -> None:
    (kind,) = plugins._found(package, "AGENT_TYPE").values()
    assert isinstance(kind, AgentType)
    assert (kind.name, list(kind.argv)) == ("heron", ["heron", "--acp"])


def test_runtime_has_every_method_of_the_contract(runtime: Any) -> None:
    verbs = {name: verb for name, verb in vars(Runtime).items() if inspect.isfunction(verb) and name[0] != "_"}
    assert len(verbs) > 5
    for name, verb in verbs.items():
        mine = inspect.signature(getattr(type(runtime), name))
        assert list(mine.parameters) == list(inspect.signature(verb).parameters), name
    assert isinstance(runtime.isolated, bool)


@pytest.mark.parametrize(
    "config", [{}, {"max_load": 0}, {"max_load": "4"}, {"max_load": True}, {"max_load": 4, "x": 1}]
)
def test_invalid_settings_are_refused_with_a_sentence(runtime: Any, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs max_load"):
        runtime.check_config(config)
    runtime.check_config({"max_load": 0.5})


async def test_busy_machine_starts_nothing_and_reports_a_transient_error(runtime: Any) -> None:
    with pytest.raises(RuntimeUnavailable, match="busy") as refused:
        await runtime.launch(replace(SPEC, config={"max_load": -1}))
    assert not refused.value.permanent


def test_every_method_and_field_of_the_contracts_is_explained() -> None:
    text = (DOCS / "extend.md").read_text(encoding="utf-8")
    verbs = [name for name, verb in vars(Runtime).items() if inspect.isfunction(verb) and name[0] != "_"]
    fields = [name for name in AgentType.__dataclass_fields__ if "seed" not in name]
    assert [name for name in (*verbs, *fields) if f"`{name}`" not in text] == []
