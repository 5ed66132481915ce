"""The settings page of a repository's remote: address, deploy key or token, host keys, and a test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from executors_app.repositories.remote_failures import SENTENCES, RemoteCause
from executors_app.wire.errors import ExecutorError
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import render_settings
from sessions_app.agents.services.mcp_servers import visible_repositories
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Repository, RepositoryRemote
from sessions_app.pages.shortcuts import READ_METHODS
from sessions_app.remotes import services
from sessions_app.remotes.forms import AddressForm, KeyForm, TokenForm

_INVALID: Final = 422


@sensitive_post_parameters("token", "private_key")
@never_cache
def edit_remote(request: UserHttpRequest, repository_id: uuid.UUID) -> HttpResponse:
    """Show where a repository's branches are pushed to. A POST by staff does what its ``action`` says."""
    repository: Repository = get_object_or_404(visible_repositories(request.user), id=repository_id)
    if request.method in READ_METHODS:
        return _render(request, repository)
    if not request.user.is_staff:
        raise PermissionDenied
    action = request.POST.get("action", "")
    if action in _FORMS:
        return _save_form(request, repository, action)
    if action not in _ACTIONS:
        return HttpResponseBadRequest("This page has no such action.")
    call, done = _ACTIONS[action]
    try:
        call(services.require_remote(repository), request)
    except (SessionsError, ExecutorError) as error:
        messages.error(request, error.message)
    else:
        if done:
            messages.success(request, done)
    return redirect(request.path)


def _save_form(request: UserHttpRequest, repository: Repository, action: str) -> HttpResponse:
    """Save what one of the forms contains, or show it again with its errors and without secrets."""
    kind, save, done = _FORMS[action]
    form = kind(request.POST)
    if form.is_valid():
        try:
            save(repository, form.cleaned_data, request.user)
        except SessionsError as error:
            form.add_error(None, error.message)
        else:
            messages.success(request, done)
            return redirect(request.path)
    return _render(request, repository, {action: form}, _INVALID)


def _save_address(repository: Repository, values: Mapping[str, Any], by: User) -> None:
    services.set_address(repository, values["address"], by)


def _save_token(repository: Repository, values: Mapping[str, Any], by: User) -> None:
    services.store_token(services.require_remote(repository), values["username"], values["token"], by)


def _save_key(repository: Repository, values: Mapping[str, Any], by: User) -> None:
    services.store_key(services.require_remote(repository), values["private_key"], by)


_Save = Callable[[Repository, Mapping[str, Any], User], None]
_FORMS: Final[Mapping[str, tuple[type[forms.Form], _Save, str]]] = {
    "address": (AddressForm, _save_address, "Saved."),
    "token": (TokenForm, _save_token, "Stored. Test the connection."),
    "key": (KeyForm, _save_key, "Stored. Test the connection."),
}


def _generate(row: RepositoryRemote, request: UserHttpRequest) -> None:
    services.make_key(row, request.user)


def _fetch(row: RepositoryRemote, request: UserHttpRequest) -> None:
    services.fetch_host_keys(row, request.user)


def _confirm(row: RepositoryRemote, request: UserHttpRequest) -> None:
    services.confirm_host_keys(row, request.POST.getlist("fingerprint"), request.user)


def _test(row: RepositoryRemote, request: UserHttpRequest) -> None:
    services.check_connection(row, request.user)


def _delete(row: RepositoryRemote, request: UserHttpRequest) -> None:
    services.delete_remote(row, request.user)


_Act = Callable[[RepositoryRemote, UserHttpRequest], None]
_ACTIONS: Final[Mapping[str, tuple[_Act, str]]] = {
    "generate": (_generate, "A new key was generated. Give its public part to the server."),
    "fetch": (_fetch, ""),
    "confirm": (_confirm, "Confirmed. Kandev connects only to a server with one of these keys."),
    "test": (_test, ""),
    "delete": (_delete, "Deleted, with its key or token. Revoke it on the server, too."),
}


def _render(
    request: HttpRequest, repository: Repository, given: Mapping[str, forms.Form] | None = None, status: int = 200
) -> HttpResponse:
    remote = services.find_remote(repository)
    address = AddressForm()
    if remote is not None:
        address = AddressForm(initial={"address": remote.address})
    shown = {"address": address, "token": TokenForm(), "key": KeyForm(), **(given or {})}
    context = {
        "repository": repository,
        "team": repository.team,
        "remote": remote,
        "address_form": shown["address"],
        "token_form": shown["token"],
        "key_form": shown["key"],
        "test_sentence": _test_sentence(remote),
        "manages": getattr(request.user, "is_staff", False),
    }
    return render_settings(request, "remotes/remote.html", "settings-repositories", context, status)


def _test_sentence(remote: RepositoryRemote | None) -> str:
    """Return why the last test failed; empty if it did not."""
    if remote is None or not remote.test_code:
        return ""
    return SENTENCES[RemoteCause(remote.test_code)]
