"""Types of requests whose user is logged in, as middleware and permissions ensure for all but a few public views."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import HttpRequest
from rest_framework.request import Request


class UserHttpRequest(HttpRequest):
    """A request of a logged-in user to a page; ``LoginRequiredMiddleware`` lets no other through."""

    user: User


class UserRequest(Request):
    """A request of a logged-in user to the API; its default permission lets no other through."""

    user: User
