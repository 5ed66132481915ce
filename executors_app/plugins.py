"""Discovers runtimes and agent types: each is one module of its package, and no list has to be edited."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from executors_app import agents as agent_package
from executors_app import runtimes as runtime_package
from executors_app.agents import AgentType
from executors_app.errors import ExecutorError
from executors_app.runtimes import Runtime


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


def _one(found: Mapping[str, Any], name: str, noun: str) -> Any:
    try:
        return found[name]
    except KeyError:
        known = ", ".join(sorted(found)) or "none"
        raise UnknownPlugin(f"Unknown {noun} {name!r}. Available: {known}.", name=name) from None


@cache
def _found(package: ModuleType, attribute: str) -> Mapping[str, Any]:
    """Return what the package's modules define as ``attribute``, by name; raises RuntimeError for a duplicate."""
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        plugin = getattr(module, attribute, None)
        if plugin is None:
            continue
        if plugin.name in found:
            raise RuntimeError(f"{module.__name__} defines {plugin.name!r} a second time.")
        found[plugin.name] = plugin
    return MappingProxyType(found)
