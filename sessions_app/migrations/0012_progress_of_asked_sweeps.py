"""How far a sweep is that somebody asked for."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0011_metrics_and_maintenance")]

    operations = [
        migrations.AddField("sweeprequest", "rows_done", models.PositiveIntegerField(default=0)),
        migrations.AddField("sweeprequest", "rows_in_all", models.PositiveIntegerField(null=True, blank=True)),
    ]
