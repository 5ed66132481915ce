"""Take over models of ``sessions_app``, in Django's state alone: their tables, rows and constraints stay as they are."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('executors_app', '0008_snapshots_announced_and_arrived'),
        ('sessions_app', '0023_attention_of_runs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='Workflow',
                    fields=[
                        ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                        ('name', models.CharField(max_length=200)),
                        ('description', models.TextField(blank=True, default='')),
                        ('text', models.TextField()),
                        ('files', models.JSONField(blank=True, default=dict)),
                        ('revision', models.PositiveIntegerField(default=1)),
                        ('is_valid', models.BooleanField(default=False)),
                        ('triggers_enabled', models.BooleanField(default=False)),
                        ('triggers_confirmed_at', models.DateTimeField(blank=True, null=True)),
                        ('triggers_paused', models.TextField(blank=True, default='')),
                        ('confirmed', models.JSONField(blank=True, default=dict, editable=False)),
                        ('next_run_at', models.DateTimeField(blank=True, null=True)),
                        ('trigger_error', models.TextField(blank=True, default='')),
                        ('created_at', models.DateTimeField(auto_now_add=True)),
                        ('updated_at', models.DateTimeField(auto_now=True)),
                        ('archived_at', models.DateTimeField(blank=True, null=True)),
                        ('agent_profile', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='executors_app.agentprofile')),
                        ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                        ('executor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='executors_app.executor')),
                        ('repository', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='workflows', to='sessions_app.repository')),
                        ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='workflows', to='auth.group')),
                        ('triggers_enabled_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                    ],
                    options={
                        'db_table': 'workflows',
                        'ordering': ('name', 'id'),
                        'abstract': False,
                    },
                ),
                migrations.CreateModel(
                    name='WorkflowRun',
                    fields=[
                        ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                        ('name', models.CharField(max_length=200)),
                        ('text', models.TextField()),
                        ('files', models.JSONField(blank=True, default=dict)),
                        ('state', models.CharField(choices=[('queued', 'queued'), ('running', 'running'), ('succeeded', 'succeeded'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='queued', max_length=10)),
                        ('error', models.TextField(blank=True, default='')),
                        ('inputs', models.JSONField(blank=True, default=dict)),
                        ('outputs', models.JSONField(blank=True, default=dict)),
                        ('trigger', models.CharField(choices=[('manual', 'manual'), ('cron', 'cron'), ('idle', 'idle'), ('api', 'api'), ('command', 'command')], default='manual', max_length=10)),
                        ('revision', models.PositiveIntegerField(default=0)),
                        ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                        ('owner', models.CharField(blank=True, default='', editable=False, max_length=64)),
                        ('lease_expires_at', models.DateTimeField(blank=True, editable=False, null=True)),
                        ('generation', models.BigIntegerField(default=0, editable=False)),
                        ('round', models.PositiveIntegerField(default=0, editable=False)),
                        ('version', models.BigIntegerField(default=0, editable=False)),
                        ('idempotency_key', models.CharField(blank=True, default='', editable=False, max_length=128)),
                        ('asked', models.CharField(blank=True, default='', editable=False, max_length=64)),
                        ('created_at', models.DateTimeField(auto_now_add=True)),
                        ('started_at', models.DateTimeField(blank=True, null=True)),
                        ('ended_at', models.DateTimeField(blank=True, null=True)),
                        ('agent_profile', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='executors_app.agentprofile')),
                        ('executor', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='executors_app.executor')),
                        ('started_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                        ('task', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='workflow_runs', to='sessions_app.task')),
                        ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='workflow_runs', to='auth.group')),
                        ('workflow', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='runs', to='workflows.workflow')),
                        ('workspace', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='sessions_app.tasksession')),
                    ],
                    options={
                        'db_table': 'workflow_runs',
                        'ordering': ('-created_at', 'id'),
                        'abstract': False,
                    },
                ),
                migrations.CreateModel(
                    name='NodeRun',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('position', models.PositiveIntegerField()),
                        ('path', models.CharField(max_length=1024)),
                        ('node', models.CharField(max_length=200)),
                        ('kind', models.CharField(max_length=40)),
                        ('state', models.CharField(choices=[('running', 'running'), ('succeeded', 'succeeded'), ('failed', 'failed'), ('retried', 'retried'), ('skipped', 'skipped'), ('cancelled', 'cancelled')], default='running', max_length=10)),
                        ('inputs', models.JSONField(blank=True, default=dict)),
                        ('outputs', models.JSONField(blank=True, default=dict)),
                        ('request', models.JSONField(blank=True, default=dict)),
                        ('error', models.TextField(blank=True, default='')),
                        ('iteration', models.PositiveIntegerField(default=0)),
                        ('flawed', models.BooleanField(default=False)),
                        ('attempt', models.PositiveIntegerField(default=1)),
                        ('waiting_for', models.CharField(blank=True, default='', max_length=20)),
                        ('message_id', models.CharField(blank=True, default='', max_length=64)),
                        ('job_id', models.CharField(blank=True, default='', max_length=64)),
                        ('output_tail', models.TextField(blank=True, default='')),
                        ('deadline_at', models.DateTimeField(blank=True, null=True)),
                        ('started_at', models.DateTimeField(blank=True, null=True)),
                        ('ended_at', models.DateTimeField(blank=True, null=True)),
                        ('session', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='node_runs', to='sessions_app.tasksession')),
                        ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='node_runs', to='workflows.workflowrun')),
                    ],
                    options={
                        'db_table': 'workflow_node_runs',
                        'ordering': ('run', 'position'),
                        'abstract': False,
                    },
                ),
                migrations.AddConstraint(
                    model_name='workflow',
                    constraint=models.UniqueConstraint(condition=models.Q(('archived_at__isnull', True)), fields=('team', 'name'), name='one_workflow_per_team_and_name'),
                ),
                migrations.AddIndex(
                    model_name='workflowrun',
                    index=models.Index(condition=models.Q(('state__in', ('queued', 'running'))), fields=['state', 'created_at'], name='workflow_run_open'),
                ),
                migrations.AddIndex(
                    model_name='workflowrun',
                    index=models.Index(fields=['workflow', '-created_at'], name='workflow_run_history'),
                ),
                migrations.AddConstraint(
                    model_name='workflowrun',
                    constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('team', 'idempotency_key'), name='one_workflow_run_per_idempotency_key'),
                ),
                migrations.AddConstraint(
                    model_name='noderun',
                    constraint=models.UniqueConstraint(fields=('run', 'path'), name='one_node_run_per_path'),
                ),
            ],
        ),
    ]
