"""A merge or push that was not carried out is in the inbox."""

from django.db import migrations, models

KINDS = [
    "gave_up",
    "error",
    "permission",
    "question",
    "held",
    "cut_short",
    "owner_left",
    "wait_interrupted",
    "overdue",
    "workflow",
    "finish",
    "stalled",
    "cancel_ignored",
    "suspended",
    "budget",
    "output_limit",
    "receipt",
    "unproven",
    "idle",
]


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0039_removed_worktrees")]

    operations = [
        migrations.AlterField(
            "attentionitem",
            "kind",
            models.CharField(choices=[(kind, kind) for kind in KINDS], max_length=16),
        ),
    ]
