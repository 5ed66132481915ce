"""Store a known text with which a wrong secret key is noticed; the first start encrypts it."""

from django.db import migrations, models

import executors_app.encryption


class Migration(migrations.Migration):

    dependencies = [("executors_app", "0006_default_and_disabled")]

    operations = [
        migrations.CreateModel(
            name="SecretKeyCheck",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "text",
                    executors_app.encryption.EncryptedTextField(
                        default="Kandev reads its secrets with this key.", editable=False
                    ),
                ),
            ],
            options={
                "db_table": "secret_key_checks",
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="one_secret_key_check")],
            },
        ),
    ]
