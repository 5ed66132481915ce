"""Help: how it goes, what the words mean, the keys; with the pictures that the tests take."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import cache_control, never_cache
from django.views.decorators.http import require_safe

from sessions_app.services.catalogue import visible_tasks
from sessions_app.services.restarting import may_restart
from sessions_app.views.glossary import KEYS, glossary, nouns

PICTURES: Final = {
    "board": "The board: tasks under their states, what the last restart came to, who needs you.",
    "session-running": "A session while its agent works.",
    "session-after-a-restart": "The same session after the control plane was killed: the same process, nothing lost.",
    "timeline": "What happened to a session, in plain words.",
    "sweeps": "The sweeps, and what each came to.",
    "restart": "The control plane was restarted on purpose, and this is what came of it.",
}
"""By name, with what they show; a picture that has not been taken is left out."""


@never_cache
@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    """The whole help on one page."""
    context = {
        "glossary": glossary(),
        "nouns": nouns(),
        "keys": KEYS,
        "pictures": {name.replace("-", "_"): (name, text) for name, text in PICTURES.items() if _file(name).is_file()},
        "example": visible_tasks(request.user).filter(archived_at=None).order_by("created_at").first(),
        "may_restart": may_restart(request.user),
    }
    return render(request, "help.html", context)


@cache_control(private=True, max_age=3600)
@require_safe
def picture(request: HttpRequest, name: str) -> HttpResponse:
    """One of ``PICTURES``."""
    if name not in PICTURES or not _file(name).is_file():
        raise Http404(name)
    return HttpResponse(_file(name).read_bytes(), content_type="image/png")


def _file(name: str) -> Path:
    return Path(settings.BASE_DIR) / "docs" / "screenshots" / f"{name}.png"
