"""The address of a link that logs somebody in."""

from __future__ import annotations

from django.http import HttpRequest
from django.urls import reverse


def address_of_link(request: HttpRequest, secret: str) -> str:
    """At the address that whoever made it uses, which is one that this deployment is called by."""
    return request.build_absolute_uri(reverse("login-link", args=(secret,)))
