from typing import Any

from django.db import migrations, models

NEW = ("cut_short", "wait_interrupted", "cancel_ignored")
EARLIER = {
    *("gave_up", "error", "permission", "held", "owner_left", "overdue", "workflow", "stalled"),
    *("receipt", "unproven", "idle"),
}


def tell_who_is_told_everything(apps: Any, editor: Any) -> None:
    """Whoever chose every kind is told of the new ones, too."""
    for name in ("NotificationSettings", "Webhook"):
        rows = apps.get_model("sessions_app", name).objects
        for row in rows.only("pk", "kinds"):
            if isinstance(row.kinds, list) and set(row.kinds) >= EARLIER:
                rows.filter(pk=row.pk).update(kinds=list(dict.fromkeys((*row.kinds, *NEW))))


class Migration(migrations.Migration):
    dependencies = [
        ("sessions_app", "0020_memory_checks"),
    ]

    operations = [
        migrations.AlterField(
            model_name="attentionitem",
            name="kind",
            field=models.CharField(
                choices=[
                    ("gave_up", "gave_up"),
                    ("error", "error"),
                    ("permission", "permission"),
                    ("held", "held"),
                    ("cut_short", "cut_short"),
                    ("owner_left", "owner_left"),
                    ("wait_interrupted", "wait_interrupted"),
                    ("overdue", "overdue"),
                    ("workflow", "workflow"),
                    ("stalled", "stalled"),
                    ("cancel_ignored", "cancel_ignored"),
                    ("receipt", "receipt"),
                    ("unproven", "unproven"),
                    ("idle", "idle"),
                ],
                max_length=16,
            ),
        ),
        migrations.RunPython(tell_who_is_told_everything, migrations.RunPython.noop),
    ]
