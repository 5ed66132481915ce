"""Schedules that are on stay on where nobody but their maker can have changed them; the others wait.

Until now scheduled runs had the rights of whoever made the workflow, whoever changed it since. Who did was not
recorded, so a schedule is taken over only if its workflow was never saved again after it was made.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db import migrations
from django.utils import timezone

AT_ONCE = timedelta(milliseconds=100)
"""Both times of a row are taken within one save; any later save is further away."""
WHY = "Kandev was upgraded, and cannot prove that only its maker has changed it."
NEXT = (
    "Open the workflow, read what it does, and confirm it or switch its triggers off. "
    "Any member of the team who may start it by hand can do that."
)


def settle(apps: Any, schema_editor: Any) -> None:
    """Decide about each workflow whose triggers are on."""
    workflows = apps.get_model("sessions_app", "Workflow")
    items = apps.get_model("sessions_app", "AttentionItem")
    for row in workflows.objects.filter(triggers_enabled=True, archived_at=None):
        is_proven = row.created_by_id and row.revision == 1 and row.updated_at - row.created_at < AT_ONCE
        if is_proven:
            files = {f"file:{path}": text for path, text in row.files.items()}
            workflows.objects.filter(id=row.id).update(
                triggers_enabled_by_id=row.created_by_id,
                triggers_confirmed_at=row.created_at,
                confirmed={"version": 0, "parts": {"text": row.text, **files}},
            )
            continue
        workflows.objects.filter(id=row.id).update(triggers_enabled=False, triggers_paused=WHY, next_run_at=None)
        items.objects.create(
            id=uuid.uuid4(),
            key=f"workflow_triggers:{row.id}",
            kind="workflow",
            workflow=row,
            what=f"The scheduled runs of “{row.name}” are paused"[:300],
            why=WHY,
            next_step=NEXT,
            created_at=timezone.now(),
        )


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0018_scheduled_rights")]

    operations = [migrations.RunPython(settle, migrations.RunPython.noop)]
