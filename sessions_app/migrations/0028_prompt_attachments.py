"""Files of prompts: their descriptions with the prompt, their contents in a table of their own.

The column keeps its default in the database, so that code of the previous release can insert prompts without it.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0027_questions'),
    ]

    operations = [
        migrations.AddField(
            model_name='prompt',
            name='attachments',
            field=models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list),
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
    ]
