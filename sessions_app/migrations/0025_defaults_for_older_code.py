"""Let code of the previous release, which still runs while new code rolls out, insert rows without the newer columns.

Django names every column in an INSERT and keeps no defaults in the database, so an INSERT of older code fails on a newer
column that is NOT NULL. Only PostgreSQL is changed: there the default is one entry of the catalogue, while SQLite would
have to copy the table.
"""

from django.db import migrations

DEFAULTS = (
    ('sessions_app', 'TaskSession', 'model', "''"),
    ('workflows', 'Workflow', 'confirmed', "'{}'"),
    ('workflows', 'Workflow', 'triggers_paused', "''"),
    ('executors_app', 'AgentProfile', 'gone_patterns', "'[]'"),
    ('executors_app', 'AgentProfile', 'memory_check', 'false'),
    ('executors_app', 'ExecutorRunning', 'snapshot_announced', "''"),
    ('executors_app', 'ExecutorRunning', 'snapshot_arrived', "''"),
    ('executors_app', 'ExecutorRunning', 'snapshot_error', "''"),
    ('executors_app', 'ExecutorRunning', 'snapshot_error_code', "''"),
)


def _alter(apps, schema_editor, clause):
    if schema_editor.connection.vendor != 'postgresql':
        return
    quote = schema_editor.quote_name
    for label, model, column, value in DEFAULTS:
        table = apps.get_model(label, model)._meta.db_table
        schema_editor.execute(
            f'ALTER TABLE {quote(table)} ALTER COLUMN {quote(column)} {clause.replace("VALUE", value)}', params=None
        )


def set_defaults(apps, schema_editor):
    _alter(apps, schema_editor, 'SET DEFAULT VALUE')


def drop_defaults(apps, schema_editor):
    _alter(apps, schema_editor, 'DROP DEFAULT')


class Migration(migrations.Migration):

    dependencies = [
        ('executors_app', '0008_snapshots_announced_and_arrived'),
        ('sessions_app', '0024_take_over_models'),
    ]

    operations = [migrations.RunPython(set_defaults, drop_defaults)]
