"""Add questions to permission requests, and their kind of inbox item.

The new columns have defaults on PostgreSQL, as in ``0025_defaults_for_older_code``.
"""

import executors_app.encryption
from django.db import migrations, models

DEFAULTS = (('answer', "'{}'"), ('kind', "'permission'"), ('question', "'{}'"), ('reason', "''"), ('sealed_answer', "''"))


def _alter(schema_editor, clause):
    if schema_editor.connection.vendor != 'postgresql':
        return
    for column, value in DEFAULTS:
        statement = f'ALTER TABLE session_permissions ALTER COLUMN {column} {clause.replace("VALUE", value)}'
        schema_editor.execute(statement, params=None)


def set_defaults(apps, schema_editor):
    _alter(schema_editor, 'SET DEFAULT VALUE')


def drop_defaults(apps, schema_editor):
    _alter(schema_editor, 'DROP DEFAULT')


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0026_agent_settings'),
    ]

    operations = [
        migrations.AddField(
            model_name='permissionrequest',
            name='answer',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='permissionrequest',
            name='kind',
            field=models.CharField(choices=[('permission', 'permission'), ('question', 'question')], default='permission', max_length=10),
        ),
        migrations.AddField(
            model_name='permissionrequest',
            name='question',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='permissionrequest',
            name='reason',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='permissionrequest',
            name='sealed_answer',
            field=executors_app.encryption.EncryptedJSONField(blank=True, default=dict),
        ),
        migrations.AlterField(
            model_name='attentionitem',
            name='kind',
            field=models.CharField(choices=[('gave_up', 'gave_up'), ('error', 'error'), ('permission', 'permission'), ('question', 'question'), ('held', 'held'), ('cut_short', 'cut_short'), ('owner_left', 'owner_left'), ('wait_interrupted', 'wait_interrupted'), ('overdue', 'overdue'), ('workflow', 'workflow'), ('stalled', 'stalled'), ('cancel_ignored', 'cancel_ignored'), ('receipt', 'receipt'), ('unproven', 'unproven'), ('idle', 'idle')], max_length=16),
        ),
        migrations.RunPython(set_defaults, drop_defaults),
    ]
