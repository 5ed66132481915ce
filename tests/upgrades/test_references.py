"""A process of release 1.0.0 beside this one deletes rows without knowing the tables that came after it."""

from __future__ import annotations

from django.apps import apps
from django.db.migrations.loader import MigrationLoader


def test_no_newer_table_holds_back_what_release_1_0_deletes() -> None:
    loader = MigrationLoader(None)
    released = [key for key in loader.disk_migrations if key[1].endswith("release_1_0")]
    ours = {app for app, _name in released}
    known = {
        model._meta.db_table for model in loader.project_state(released).apps.get_models(include_auto_created=True)
    }
    newer = [
        model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.app_label in ours and model._meta.db_table not in known
    ]
    assert newer
    holding = [
        str(field)
        for model in newer
        for field in model._meta.concrete_fields
        if field.related_model is not None
        and getattr(field, "db_constraint", False)
        and field.related_model._meta.db_table in known
    ]
    assert holding == [], "these need db_constraint=False"
