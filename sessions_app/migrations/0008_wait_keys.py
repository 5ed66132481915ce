"""Call the keys of waits by their name; the table and its columns keep theirs, so both releases can use them."""

import django.db.models.deletion
from django.db import migrations, models

ACTIONS = ("add", "change", "delete", "view")


def rename_permissions(apps, schema_editor):
    """Let those who were granted a permission on resume tokens keep it."""
    permissions = apps.get_model("auth", "Permission").objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        ours = permissions.filter(content_type__app_label="sessions_app", codename=f"{action}_resumetoken")
        ours.update(codename=f"{action}_waitkey", name=f"Can {action} wait key")


def restore_permissions(apps, schema_editor):
    """Undo ``rename_permissions``."""
    permissions = apps.get_model("auth", "Permission").objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        ours = permissions.filter(content_type__app_label="sessions_app", codename=f"{action}_waitkey")
        ours.update(codename=f"{action}_resumetoken", name=f"Can {action} resume token")


class Migration(migrations.Migration):
    dependencies = [
        ("sessions_app", "0007_fill_turns"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        migrations.RenameModel(old_name="ResumeToken", new_name="WaitKey"),
        migrations.RunPython(rename_permissions, restore_permissions),
        migrations.AlterField(
            "waitkey",
            "session",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="wait_keys", to="sessions_app.tasksession"
            ),
        ),
        migrations.AlterField(
            "waitkey",
            "run",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="wait_keys",
                to="sessions_app.turn",
            ),
        ),
    ]
