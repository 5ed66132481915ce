"""Load everything that a process may need later, so that files which are replaced or removed under it do no harm.

A process imports some modules and compiles each template when it first needs it. If its release is replaced meanwhile,
it would mix two releases, or find nothing. So a process loads the rest once it has run for a while; not at its start,
which nobody should wait for.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.forms.renderers import DjangoTemplates, get_default_renderer
from django.template import engines
from django.template.backends.django import DjangoTemplates as DjangoBackend

log = logging.getLogger(__name__)

AFTER: Final = 30.0
"""Seconds after its start when a process loads the rest."""
PACKAGES: Final = ("kandev", "sessions_app", "executors_app")
NOT_LOADED: Final = (
    "executors_app.agentctl",  # other processes, which load all of it at their start
    "executors_app.demo_agent",
    "sessions_app.demo",
    "kandev.asgi",  # only the web server, which has loaded it
    "kandev.graceful_end",
)
"""Modules, and packages with all that is in them, that a running process never imports."""
ONLY_FOR_WEB: Final = (
    "views",
    "forms",
    "urls",
    "api",
    "mcp_server",
    "consumers",
    "routing",
    "asgi",
    "web_server",
    "templatetags",
)
"""How the names end of modules and packages that only a web server imports. They take most of the memory."""
CACHED_FILES: Final = (
    ("sessions_app.pages.assets", "bundles"),
    ("sessions_app.pages.views.design", "read_design_tokens"),
)
"""Functions that read a file of the release once and keep what it says."""
_NEVER_IMPORTED: Final = frozenset({"__main__", "migrations", "commands"})


class Preloading:
    """Loads everything that its process may need once, some time after it was made.

    ``for_web``: whether a web server runs in the process, or in one that is forked from it.
    """

    def __init__(self, *, for_web: bool) -> None:
        self._for_web = for_web
        self._due_at = time.monotonic() + AFTER
        self._is_done = False

    def load_if_due(self) -> None:
        """Load everything if it is time and has not been done."""
        if not self._is_done and time.monotonic() >= self._due_at:
            self._is_done = True
            load_everything(for_web=self._for_web)


def load_later(*, for_web: bool) -> None:
    """Load everything ``AFTER`` seconds from now, in a thread that does not keep the process alive."""
    timer = threading.Timer(AFTER, load_everything, kwargs={"for_web": for_web})
    timer.name, timer.daemon = "preloading", True
    timer.start()


def load_everything(*, for_web: bool = True) -> None:
    """Import the modules of Kandev and compile all templates; what cannot be loaded is logged and left out.

    Without ``for_web`` neither what only a web server needs, nor the templates: no other process shows pages.

    Never raises an Exception: the process works without it, as long as its files stay.
    """
    failed = 0
    for what, load in _steps(for_web=for_web):
        if not _succeeds(what, load):
            failed += 1
    if failed:
        log.warning("all modules and templates are loaded, except %d", failed)
    else:
        log.info("all modules and templates are loaded")


def _steps(*, for_web: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is to be loaded, by its name; each step has to be taken before the next one is asked for."""
    for name in modules_to_load(for_web=for_web):
        yield name, partial(importlib.import_module, name)
    if not for_web:
        return
    for module, function in CACHED_FILES:
        yield f"{module}.{function}", partial(_call, module, function)
    for engine, name in _templates():
        yield f"the template {name}", partial(engine.get_template, name)


def _succeeds(what: str, load: Callable[[], object]) -> bool:
    try:
        load()
    except Exception:
        log.exception("%s cannot be loaded before it is needed", what)
        return False
    return True


def _call(module: str, function: str) -> None:
    getattr(importlib.import_module(module), function)()


def modules_to_load(*, for_web: bool = True) -> Iterator[str]:
    """Yield the modules that a process may import while it runs; those below a package only once it is imported."""
    for package in PACKAGES:
        yield package
        yield from _modules_in(package, for_web=for_web)


def _modules_in(package: str, *, for_web: bool) -> Iterator[str]:
    """Yield the modules below a package that has just been yielded; none if it could not be imported."""
    folders = getattr(sys.modules.get(package), "__path__", ())
    for found in pkgutil.iter_modules(folders, f"{package}."):
        own_name = found.name.rpartition(".")[2]
        if found.name in NOT_LOADED or own_name in _NEVER_IMPORTED:
            continue
        if own_name.endswith(ONLY_FOR_WEB) and not for_web:
            continue
        yield found.name
        if found.ispkg:
            yield from _modules_in(found.name, for_web=for_web)


def _templates() -> Iterator[tuple[Any, str]]:
    """Yield each template with its engine: those of pages, and those of the fields of forms."""
    backends: list[Any] = engines.all()
    renderer = get_default_renderer()
    if isinstance(renderer, DjangoTemplates):
        backends.append(renderer.engine)
    for engine in [backend.engine for backend in backends if isinstance(backend, DjangoBackend)]:
        for name in sorted(set(_names_of(engine))):
            yield engine, name


def _names_of(engine: Any) -> Iterator[str]:
    for loader in engine.template_loaders:
        for inner in getattr(loader, "loaders", [loader]):
            for folder in map(Path, inner.get_dirs()):
                yield from (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
