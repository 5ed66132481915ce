"""Every route of the URL configuration, with the methods of its view."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

METHODS = ("get", "post", "put", "patch", "delete")
OF_FUNCTIONS = ("get", "post")
"""A function does not declare its methods; refusing one is a row of its own."""


def addresses() -> dict[str, tuple[str, ...]]:
    """Return the methods of each route, such as ``tasks/<uuid:task_id>/``."""
    return {route: methods_of(pattern.callback) for route, pattern in _walk(get_resolver().url_patterns, "")}


def _walk(patterns: list[Any], prefix: str) -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, route)
        else:
            yield route, pattern


def methods_of(callback: Any) -> tuple[str, ...]:
    """Return the methods for which a view has a handler."""
    view = getattr(inspect.unwrap(callback), "view_class", None) or getattr(callback, "view_class", None)
    if view is None:
        return OF_FUNCTIONS
    return tuple(name for name in METHODS if name in view.http_method_names and hasattr(view, name)) or OF_FUNCTIONS
