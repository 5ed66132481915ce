"""What the settings consist of, and the frame that each page of them stands in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse


@dataclass(frozen=True, slots=True)
class Section:
    """One page, by the name of its address."""

    name: str
    title: str
    for_staff: bool = False


SECTIONS: Final = (
    Section("settings-profile", "Profile"),
    Section("settings-password", "Password and logins"),
    Section("settings-notifications", "Notifications"),
    Section("settings-tokens", "API tokens"),
    Section("settings-teams", "Teams"),
    Section("settings-people", "People", for_staff=True),
)


def show(request: HttpRequest, template: str, section: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """A page of the settings, with the way to the others."""
    staff = getattr(request.user, "is_staff", False)
    shown = [
        {"title": one.title, "url": reverse(one.name), "here": one.name == section}
        for one in SECTIONS
        if staff or not one.for_staff
    ]
    return render(request, template, {"sections": shown, **context}, status=status)
