"""Files of prompts: their descriptions with the prompt, their contents in a table of their own."""

import django.db.models.deletion
from django.db import migrations, models


def _alter(schema_editor, apps, clause):
    """Give the column a default in PostgreSQL, so that code of the previous release can insert prompts without it."""
    if schema_editor.connection.vendor != 'postgresql':
        return
    quote, table = schema_editor.quote_name, apps.get_model('sessions_app', 'Prompt')._meta.db_table
    schema_editor.execute(f'ALTER TABLE {quote(table)} ALTER COLUMN {quote("attachments")} {clause}', params=None)


def set_default(apps, schema_editor):
    _alter(schema_editor, apps, "SET DEFAULT '[]'")


def drop_default(apps, schema_editor):
    _alter(schema_editor, apps, 'DROP DEFAULT')


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0027_questions'),
    ]

    operations = [
        migrations.AddField(
            model_name='prompt',
            name='attachments',
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.CreateModel(
            name='Attachment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha256', models.CharField(max_length=64)),
                ('media_type', models.CharField(max_length=100)),
                ('content', models.BinaryField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('session', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attachments', to='sessions_app.tasksession')),
            ],
            options={
                'db_table': 'session_attachments',
                'ordering': ('id',),
                'abstract': False,
                'constraints': [models.UniqueConstraint(fields=('session', 'sha256'), name='one_attachment_per_content')],
            },
        ),
        migrations.RunPython(set_default, drop_default),
    ]
