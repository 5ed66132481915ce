"""Call the table of turns and waits by its name, and give it the columns in which a turn describes itself.

The columns may be null, so that processes of the release before can still write rows. They stay null in older rows,
where they mean *unknown*.
"""

import django.db.models.deletion
from django.db import migrations, models

ACTIONS = ("add", "change", "delete", "view")


def rename_permissions(apps, schema_editor):
    """Let those who were granted a permission on runs keep it."""
    permissions = apps.get_model("auth", "Permission").objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        ours = permissions.filter(content_type__app_label="sessions_app", codename=f"{action}_run")
        ours.update(codename=f"{action}_turn", name=f"Can {action} turn")


def restore_permissions(apps, schema_editor):
    """Undo ``rename_permissions``."""
    permissions = apps.get_model("auth", "Permission").objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        ours = permissions.filter(content_type__app_label="sessions_app", codename=f"{action}_turn")
        ours.update(codename=f"{action}_run", name=f"Can {action} run")


class Migration(migrations.Migration):
    dependencies = [
        ("sessions_app", "0002_release_1_0"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        migrations.RenameModel(old_name="Run", new_name="Turn"),
        migrations.RunPython(rename_permissions, restore_permissions),
        migrations.AddField(
            "turn",
            "origin",
            models.CharField(
                blank=True,
                choices=[("prompt", "prompt"), ("kandev", "kandev"), ("agent", "agent")],
                max_length=8,
                null=True,
            ),
        ),
        migrations.AddField(
            "turn",
            "prompt",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="turns",
                to="sessions_app.prompt",
            ),
        ),
        migrations.AddField("turn", "first_seq", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("turn", "last_seq", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("turn", "stop_reason", models.CharField(blank=True, max_length=64, null=True)),
        migrations.AddField("turn", "usage", models.JSONField(blank=True, default=None, null=True)),
        migrations.AddField("turn", "request_digest", models.CharField(blank=True, max_length=32, null=True)),
        migrations.AddField("turn", "answer_digest", models.CharField(blank=True, max_length=32, null=True)),
        migrations.AddField("turn", "snapshot_before", models.CharField(blank=True, max_length=64, null=True)),
        migrations.AddField("turn", "snapshot_after", models.CharField(blank=True, max_length=64, null=True)),
    ]
