"""The keys of the API that somebody has."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.services import api_tokens
from sessions_app.services.errors import Conflict, NotFound
from sessions_app.views.settings.forms import TokenForm
from sessions_app.views.settings.sections import show


@never_cache
def tokens(request: HttpRequest) -> HttpResponse:
    """List them; a POST makes one and shows its key in its answer, which is kept nowhere."""
    form, key, made = TokenForm(request.POST if request.method == "POST" else None), "", None
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                made, key = api_tokens.make(request.user, **form.cleaned_data)
                form, status = TokenForm(), 201
            except Conflict as error:
                form.add_error(None, error.message)
    context = {"form": form, "tokens": api_tokens.tokens_of(request.user), "key": key, "made": made}
    return show(request, "settings/tokens.html", "settings-tokens", context, status)


@require_POST
def revoke(request: HttpRequest, token_id: uuid.UUID) -> HttpResponse:
    """Take one back; another's is not there."""
    try:
        api_tokens.revoke(request.user, token_id)
    except NotFound:
        raise Http404 from None
    messages.success(request, "The token is revoked: whatever used it is refused from now on.")
    return redirect("settings-tokens")
