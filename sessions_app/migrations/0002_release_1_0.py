import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0001_release_1_0'),
        ('workflows', '0001_release_1_0'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AttentionItem',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200, unique=True)),
                ('kind', models.CharField(choices=[('gave_up', 'gave_up'), ('error', 'error'), ('permission', 'permission'), ('question', 'question'), ('held', 'held'), ('cut_short', 'cut_short'), ('owner_left', 'owner_left'), ('wait_interrupted', 'wait_interrupted'), ('overdue', 'overdue'), ('workflow', 'workflow'), ('stalled', 'stalled'), ('cancel_ignored', 'cancel_ignored'), ('output_limit', 'output_limit'), ('receipt', 'receipt'), ('unproven', 'unproven'), ('idle', 'idle')], max_length=16)),
                ('session', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='attention', to='sessions_app.tasksession')),
                ('task', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='attention', to='sessions_app.task')),
                ('workflow', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='attention', to='workflows.workflow')),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='attention', to='workflows.workflowrun')),
                ('what', models.CharField(max_length=300)),
                ('why', models.TextField(blank=True, default='')),
                ('next_step', models.TextField(blank=True, default='')),
                ('detail', models.TextField(blank=True, default='')),
                ('created_at', models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ('resolved_at', models.DateTimeField(blank=True, null=True)),
                ('resolution', models.CharField(blank=True, default='', max_length=64)),
            ],
            options={
                'db_table': 'attention_items',
                'ordering': ('-created_at', 'id'),
                'abstract': False,
                'indexes': [models.Index(fields=['session', 'resolved_at'], name='attention_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('session__isnull', False), ('task__isnull', False), ('workflow', None)), models.Q(('run__isnull', False), ('task__isnull', False), ('workflow', None)), models.Q(('run', None), ('session', None), ('task', None), ('workflow__isnull', False)), _connector='OR'), name='attention_of_a_session_or_a_workflow')],
            },
        ),
        migrations.CreateModel(
            name='AttentionMark',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('item', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='marks', to='sessions_app.attentionitem')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('acknowledged_at', models.DateTimeField(blank=True, null=True)),
                ('dismissed_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'db_table': 'attention_marks',
                'constraints': [models.UniqueConstraint(fields=('item', 'user'), name='one_mark_per_user_and_item')],
            },
        ),
    ]
