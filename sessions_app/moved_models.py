"""Keep what refers to models by their old app label ``sessions_app``: content types and addresses of the admin.

Accounts, notifications and workflows became apps of their own. Their tables and rows stayed where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.apps import apps as installed_apps
from django.contrib.contenttypes.models import ContentType
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import HttpRequest, HttpResponsePermanentRedirect
from django.urls import URLPattern, re_path

OLD_LABEL: Final = "sessions_app"
MOVED_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "accounts": ("apitoken", "attemptcount", "loginlink", "preferences", "teamrole"),
    "notifications": ("delivereditem", "delivery", "notificationsettings", "webhook"),
    "workflows": ("noderun", "workflow", "workflowrun"),
}
"""The models that moved out of ``sessions_app``, by the label of the app that has them now."""


def rename_content_types(apps: Any, schema_editor: Any) -> None:
    """Give the content types of moved models their new label; part of the migration that moves them."""
    for label, model in _moved():
        _move_content_type(apps, schema_editor.connection.alias, model, OLD_LABEL, label)
    ContentType.objects.clear_cache()


def restore_content_types(apps: Any, schema_editor: Any) -> None:
    """Undo ``rename_content_types``."""
    for label, model in _moved():
        _move_content_type(apps, schema_editor.connection.alias, model, label, OLD_LABEL)
    ContentType.objects.clear_cache()


def adopt_old_content_types(using: str = DEFAULT_DB_ALIAS, apps: Any = installed_apps, **signal: Any) -> None:
    """Adopt content types that code of the previous release has recreated under the old label.

    While new code rolls out, an old web process does not find the content type that the migration renamed, and creates
    another one for the next line of the admin's history. Runs after each migration (``post_migrate``) and hourly.
    """
    recreated = ContentType.objects.using(using).filter(app_label=OLD_LABEL, model__in=[model for _, model in _moved()])
    if ContentType._meta.db_table not in connections[using].introspection.table_names() or not recreated.exists():
        return
    for label, model in _moved():
        # ``apps`` is the state that this run of ``migrate`` has reached. If it went back to before the move, the old
        # label is the right one.
        if _has_model(apps, label, model) and not _has_model(apps, OLD_LABEL, model):
            _move_content_type(installed_apps, using, model, OLD_LABEL, label)
    ContentType.objects.clear_cache()


def _moved() -> Iterator[tuple[str, str]]:
    return ((label, model) for label, models in MOVED_MODELS.items() for model in models)


def _has_model(apps: Any, label: str, model: str) -> bool:
    try:
        apps.get_model(label, model)
    except LookupError:
        return False
    return True


def _move_content_type(apps: Any, using: str, model: str, old: str, new: str) -> None:
    """Relabel the content type of ``model``; if there is one of the new label already, merge the old one into it.

    A content type that keeps its id keeps its permissions, who has them, and the admin's history.
    """
    with transaction.atomic(using=using):
        content_types = apps.get_model("contenttypes", "ContentType").objects.using(using)
        there = {row.app_label: row for row in content_types.filter(model=model, app_label__in=(old, new))}
        if old not in there:
            return
        if new in there:
            _merge(apps, using, there[old].pk, there[new].pk)
        else:
            content_types.filter(pk=there[old].pk).update(app_label=new)


def _merge(apps: Any, using: str, duplicate: int, kept: int) -> None:
    """Move permissions, their assignments and the admin's history from one content type to another, and delete it."""
    log_entries = apps.get_model("admin", "LogEntry").objects.using(using)
    log_entries.filter(content_type_id=duplicate).update(content_type_id=kept)
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    kept_by_codename = {row.codename: row for row in permissions.filter(content_type_id=kept)}
    for permission in permissions.filter(content_type_id=duplicate):
        if permission.codename not in kept_by_codename:
            permissions.filter(pk=permission.pk).update(content_type_id=kept)
            continue
        same = kept_by_codename[permission.codename]
        same.group_set.add(*permission.group_set.all())
        same.user_set.add(*permission.user_set.all())
        permission.delete()
    apps.get_model("contenttypes", "ContentType").objects.using(using).filter(pk=duplicate).delete()


def _redirect_to_new_label(request: HttpRequest, model: str, rest: str) -> HttpResponsePermanentRedirect:
    label = next(label for label, models in MOVED_MODELS.items() if model in models)
    url = request.get_full_path().replace(f"/{OLD_LABEL}/{model}/", f"/{label}/{model}/", 1)
    # A form that was open before the upgrade is sent again to the new address instead of becoming a GET.
    return HttpResponsePermanentRedirect(url, preserve_request=request.method not in ("GET", "HEAD"))


def old_admin_urls() -> list[URLPattern]:
    """Return URL patterns that redirect the old addresses of moved models under ``admin/``, for one release."""
    models = "|".join(model for _, model in _moved())
    return [re_path(rf"admin/{OLD_LABEL}/(?P<model>{models})/(?P<rest>.*)$", _redirect_to_new_label)]
