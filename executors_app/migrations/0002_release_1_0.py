import django.db.models.deletion
import executors_app.encryption
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('executors_app', '0001_release_1_0'),
        ('sessions_app', '0001_release_1_0'),
    ]

    operations = [
        migrations.CreateModel(
            name='ExecutorRunning',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('session', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='executions', to='sessions_app.tasksession')),
                ('task', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='sessions_app.task')),
                ('executor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='executions', to='executors_app.executor')),
                ('runtime', models.CharField(max_length=64)),
                ('host_id', models.CharField(blank=True, max_length=200)),
                ('agentctl_url', models.CharField(blank=True, max_length=500)),
                ('agentctl_port', models.PositiveIntegerField(blank=True, null=True)),
                ('container_id', models.CharField(blank=True, max_length=128)),
                ('pid', models.PositiveIntegerField(blank=True, null=True)),
                ('status', models.CharField(choices=[('starting', 'Starting'), ('ready', 'Ready'), ('error', 'Error'), ('stopped', 'Stopped')], default='starting', max_length=16)),
                ('status_reason', models.CharField(blank=True, max_length=64)),
                ('supports_session_resume', models.BooleanField(blank=True, default=None, null=True)),
                ('capability_note', models.TextField(blank=True, default='')),
                ('supports_workspace_only', models.BooleanField(default=True)),
                ('auth_token', executors_app.encryption.EncryptedTextField(blank=True, default='')),
                ('resume_token', executors_app.encryption.EncryptedTextField(blank=True, default='')),
                ('rejected_resume_token', executors_app.encryption.EncryptedTextField(blank=True, default='')),
                ('last_message_uuid', models.CharField(blank=True, max_length=200)),
                ('workspace_path', models.CharField(blank=True, max_length=4096)),
                ('worktree_id', models.CharField(blank=True, max_length=64)),
                ('worktree_path', models.CharField(blank=True, max_length=4096)),
                ('worktree_branch', models.CharField(blank=True, max_length=255)),
                ('last_seen_at', models.DateTimeField(blank=True, null=True)),
                ('error_code', models.CharField(blank=True, max_length=64)),
                ('error_message', models.TextField(blank=True)),
                ('owner', models.CharField(blank=True, max_length=200)),
                ('lease_expires_at', models.DateTimeField(blank=True, null=True)),
                ('generation', models.BigIntegerField(default=0)),
                ('boot_id', models.CharField(blank=True, max_length=64)),
                ('journal_epoch', models.CharField(blank=True, max_length=64)),
                ('journal_seq', models.BigIntegerField(default=0)),
                ('output_bytes', models.BigIntegerField(default=0)),
                ('turn_output_bytes', models.BigIntegerField(default=0)),
                ('output_allowed', models.BigIntegerField(default=0)),
                ('turn_output_allowed', models.BigIntegerField(default=0)),
                ('output_left_out', models.BigIntegerField(default=0)),
                ('output_limit', models.CharField(blank=True, default='', max_length=8)),
                ('snapshot_announced', models.CharField(blank=True, default='', max_length=64)),
                ('snapshot_arrived', models.CharField(blank=True, default='', max_length=64)),
                ('snapshot_due_since', models.DateTimeField(blank=True, null=True)),
                ('snapshot_error_code', models.CharField(blank=True, default='', max_length=64)),
                ('snapshot_error', models.TextField(blank=True, default='')),
                ('state', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'db_table': 'executors_running',
                'ordering': ('created_at', 'id'),
                'indexes': [models.Index(fields=['status', 'runtime'], name='executors_running_by_status'), models.Index(fields=['owner'], name='executors_running_owner'), models.Index(fields=['lease_expires_at'], name='executors_running_lease'), models.Index(condition=models.Q(('snapshot_announced', models.F('snapshot_arrived')), _negated=True), fields=['runtime'], name='executors_running_snapshots')],
            },
        ),
    ]
