import django.db.models.deletion
import executors_app.encryption
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='AgentProfile',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=200)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='agent_profiles', to='auth.group')),
                ('agent_type', models.CharField(max_length=64)),
                ('command', models.JSONField(blank=True, default=list)),
                ('args', models.JSONField(blank=True, default=list)),
                ('env', executors_app.encryption.EncryptedJSONField(blank=True, default=dict)),
                ('model', models.CharField(blank=True, max_length=200)),
                ('mode', models.CharField(blank=True, max_length=200)),
                ('additional_directories', models.JSONField(blank=True, default=list)),
                ('mcp_servers', executors_app.encryption.EncryptedJSONField(blank=True, default=list)),
                ('secret_hosts', models.JSONField(blank=True, default=dict)),
                ('gone_patterns', models.JSONField(blank=True, default=list)),
                ('permission_mode', models.CharField(choices=[('ask', 'Ask'), ('auto_approve', 'Approve automatically')], default='ask', max_length=16)),
                ('supports_session_resume', models.BooleanField(blank=True, default=None, null=True)),
                ('history_context_injection', models.BooleanField(blank=True, default=None, null=True)),
                ('memory_check', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'db_table': 'agent_profiles',
                'ordering': ('name', 'id'),
            },
        ),
        migrations.CreateModel(
            name='Executor',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=200, unique=True)),
                ('runtime', models.CharField(max_length=64)),
                ('config', models.JSONField(blank=True, default=dict)),
                ('max_live', models.PositiveIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'db_table': 'executors',
                'ordering': ('name',),
            },
        ),
        migrations.CreateModel(
            name='AgentCapability',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='auth.group')),
                ('profile', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='executors_app.agentprofile')),
                ('executor', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='executors_app.executor')),
                ('agent_type', models.CharField(max_length=64)),
                ('agent_name', models.CharField(blank=True, max_length=200)),
                ('agent_version', models.CharField(blank=True, max_length=200)),
                ('capability', models.CharField(max_length=64)),
                ('claimed', models.BooleanField()),
                ('kept_at', models.DateTimeField(blank=True, null=True)),
                ('kept_proof', models.CharField(blank=True, max_length=16)),
                ('replayed_at', models.DateTimeField(blank=True, null=True)),
                ('broken_at', models.DateTimeField(blank=True, null=True)),
                ('broken_how', models.CharField(blank=True, max_length=32)),
                ('broken_said', models.TextField(blank=True)),
                ('first_seen_at', models.DateTimeField(auto_now_add=True)),
                ('last_seen_at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'agent capabilities',
                'db_table': 'observed_capabilities',
                'ordering': ('agent_type', 'agent_name', 'agent_version', 'capability'),
                'constraints': [models.UniqueConstraint(fields=('team', 'profile', 'executor', 'agent_name', 'agent_version', 'capability'), name='observed_capability_once')],
            },
        ),
    ]
