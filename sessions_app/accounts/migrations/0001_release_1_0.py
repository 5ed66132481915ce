import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='TeamRole',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='team_roles', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='roles', to='auth.group')),
                ('role', models.CharField(choices=[('admin', 'Admin: a member who also manages the members'), ('member', 'Member: reads and writes'), ('viewer', 'Viewer: reads')], default='member', max_length=10)),
            ],
            options={
                'db_table': 'team_roles',
                'ordering': ('team__name', 'user__username'),
                'permissions': (('operate_unisolated', 'Can use shells and write files where agents are not isolated'),),
                'constraints': [models.UniqueConstraint(fields=('user', 'team'), name='one_role_per_member')],
            },
        ),
        migrations.CreateModel(
            name='Preferences',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='preferences', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('theme', models.CharField(choices=[('system', 'Same as the system'), ('light', 'Light'), ('dark', 'Dark')], default='system', max_length=6)),
                ('time_zone', models.CharField(blank=True, default='', max_length=64)),
            ],
            options={
                'verbose_name_plural': 'preferences',
                'db_table': 'preferences',
            },
        ),
        migrations.CreateModel(
            name='AttemptCount',
            fields=[
                ('key', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('tries', models.PositiveIntegerField()),
                ('ends_at', models.DateTimeField(db_index=True)),
            ],
            options={
                'db_table': 'attempt_counts',
                'ordering': ('ends_at',),
            },
        ),
        migrations.CreateModel(
            name='LoginLink',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('secret_hash', models.CharField(max_length=64, unique=True)),
                ('purpose', models.CharField(choices=[('login', 'Log in'), ('password', 'Set a new password')], default='login', max_length=10)),
                ('made_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('expires_at', models.DateTimeField()),
                ('used_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'db_table': 'login_links',
                'ordering': ('-expires_at',),
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to=settings.AUTH_USER_MODEL)),
                ('name', models.CharField(max_length=100)),
                ('scope', models.CharField(choices=[('read', 'Read'), ('write', 'Read and write')], default='read', max_length=5)),
                ('secret_hash', models.CharField(max_length=64, unique=True)),
                ('begins_with', models.CharField(blank=True, default='', max_length=12)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name': 'API token',
                'db_table': 'api_tokens',
                'ordering': ('-created_at',),
            },
        ),
    ]
