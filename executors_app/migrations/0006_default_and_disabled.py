"""Say which executor is the default, and since when executors and agent profiles are disabled."""

from typing import Any

from django.db import migrations, models


def keep_default(apps: Any, schema_editor: Any) -> None:
    """Make the executor the default that was one until now: the first by name."""
    executors = apps.get_model("executors_app", "Executor").objects
    first = executors.order_by("name").values_list("pk", flat=True).first()
    executors.filter(pk=first).update(is_default=True)


class Migration(migrations.Migration):

    dependencies = [("executors_app", "0005_background_policy")]

    operations = [
        migrations.AddField("agentprofile", "disabled_at", models.DateTimeField(blank=True, editable=False, null=True)),
        migrations.AddField("executor", "disabled_at", models.DateTimeField(blank=True, editable=False, null=True)),
        migrations.AddField(
            "executor", "is_default", models.BooleanField(db_default=False, default=False, editable=False)
        ),
        migrations.RunPython(keep_default, migrations.RunPython.noop),
        migrations.AddConstraint(
            "executor",
            models.UniqueConstraint(
                condition=models.Q(("is_default", True)), fields=("is_default",), name="one_default_executor"
            ),
        ),
    ]
