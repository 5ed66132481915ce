from django.db import migrations

import executors_app.orm


class Migration(migrations.Migration):

    dependencies = [
        ("sessions_app", "0008_accounts"),
    ]

    operations = [
        migrations.AddField(
            model_name="tasksession",
            name="usage",
            field=executors_app.orm.ObjectField(blank=True, default=dict, editable=False),
        ),
    ]
