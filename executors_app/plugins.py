"""Discovers runtimes and agent types: the modules of their packages declare them, and no list has to be edited.

A plugin is one module. If it needs more, it is a folder whose module ``runtime`` declares it.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from executors_app import agents as agent_package
from executors_app import runtimes as runtime_package
from executors_app.agents import AgentType
from executors_app.runtimes import Runtime
from executors_app.wire.errors import ExecutorError


class UnknownPlugin(ExecutorError):
    """This runtime or agent type is not known."""

    code = "unknown_plugin"
    permanent = True


def runtimes() -> Mapping[str, Runtime]:
    """Return every runtime by name."""
    return _found(runtime_package, "RUNTIME")


def agent_types() -> Mapping[str, AgentType]:
    """Return every agent type by name."""
    return _found(agent_package, "AGENT_TYPE")


def runtime(name: str) -> Runtime:
    """Return one runtime; raises UnknownPlugin."""
    return _one(runtimes(), name, "runtime")  # type: ignore[no-any-return]


def agent_type(name: str) -> AgentType:
    """Return one agent type; raises UnknownPlugin."""
    return _one(agent_types(), name, "agent type")  # type: ignore[no-any-return]


def missing_programs(kind: AgentType) -> list[str]:
    """Return the programs that an agent type needs and this machine lacks."""
    return [program for program in kind.needs if shutil.which(program) is None]


def listed_agent_types() -> list[tuple[AgentType, list[str]]]:
    """Return every agent type with its missing programs, in the order of lists.

    What can be used comes first: installed agents, then those that need nothing here, then the others; by title.
    """
    found = [(kind, missing_programs(kind)) for kind in agent_types().values()]
    return sorted(found, key=lambda one: (bool(one[1]), not one[0].needs, one[0].title.casefold()))


def _one(found: Mapping[str, Any], name: str, noun: str) -> Any:
    try:
        return found[name]
    except KeyError:
        known = ", ".join(sorted(found)) or "none"
        raise UnknownPlugin(f"Unknown {noun} {name!r}. Available: {known}.", name=name) from None


@cache
def _found(package: ModuleType, attribute: str) -> Mapping[str, Any]:
    """Return what the package's modules define as ``attribute`` or, several at once, in its plural, by name.

    Raises RuntimeError for a duplicate.
    """
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{info.name}"
        if info.ispkg:
            name += ".runtime"
        module = importlib.import_module(name)
        plugins = list(getattr(module, f"{attribute}S", ()))
        if hasattr(module, attribute):
            plugins.insert(0, getattr(module, attribute))
        for plugin in plugins:
            if plugin.name in found:
                raise RuntimeError(f"{module.__name__} defines {plugin.name!r} a second time.")
            found[plugin.name] = plugin
    return MappingProxyType(found)
