"""Since when a task is in its state, and how many lines a branch has changed; both unknown for rows that exist."""

import django.utils.timezone
from django.db import migrations, models

STATES = ["TODO", "IN_PROGRESS", "REVIEW", "DONE", "FAILED", "CANCELLED"]


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0032_hosts")]

    operations = [
        migrations.AddField("task", "entered_at", models.DateTimeField(blank=True, editable=False, null=True)),
        migrations.AddField(
            "task",
            "entered_state",
            models.CharField(
                blank=True,
                choices=[(state, state) for state in STATES],
                db_default="",
                default="",
                editable=False,
                max_length=20,
            ),
        ),
        # Their defaults only now: existing rows stay unknown.
        migrations.AlterField(
            "task",
            "entered_at",
            models.DateTimeField(blank=True, default=django.utils.timezone.now, editable=False, null=True),
        ),
        migrations.AlterField(
            "task",
            "entered_state",
            models.CharField(
                blank=True,
                choices=[(state, state) for state in STATES],
                db_default="",
                default="TODO",
                editable=False,
                max_length=20,
            ),
        ),
        migrations.AddField(
            "tasksession", "branch_additions", models.PositiveIntegerField(blank=True, editable=False, null=True)
        ),
        migrations.AddField(
            "tasksession", "branch_deletions", models.PositiveIntegerField(blank=True, editable=False, null=True)
        ),
        migrations.AddField(
            "tasksession", "branch_counted_at", models.DateTimeField(blank=True, editable=False, null=True)
        ),
    ]
