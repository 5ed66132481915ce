"""Let an executor belong to a host. Those that exist belong to none: whichever host has the repository goes on."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("executors_app", "0007_secret_key_check"), ("sessions_app", "0032_hosts")]

    operations = [
        migrations.AddField(
            "executor",
            "host",
            models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="executors",
                to="sessions_app.host",
            ),
        ),
    ]
