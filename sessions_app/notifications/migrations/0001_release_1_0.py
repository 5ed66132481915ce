import django.db.models.deletion
import django.utils.timezone
import executors_app.encryption
import sessions_app.notifications.models
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('sessions_app', '0002_release_1_0'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='NotificationSettings',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='notification_settings', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('email', models.BooleanField(default=False, verbose_name='Send me e-mail')),
                ('kinds', models.JSONField(blank=True, default=sessions_app.notifications.models.all_kinds)),
                ('only_mine', models.BooleanField(default=False, verbose_name='Only for sessions that I own')),
                ('every', models.PositiveIntegerField(choices=[(5, 'every 5 minutes'), (15, 'every 15 minutes'), (60, 'once an hour'), (1440, 'once a day')], default=15, verbose_name='At most')),
                ('minimum_share', models.PositiveSmallIntegerField(default=0, verbose_name='Only when this share of the agents is waiting')),
                ('last_email_at', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'verbose_name_plural': 'notification settings',
                'db_table': 'notification_settings',
            },
        ),
        migrations.CreateModel(
            name='Webhook',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to='auth.group')),
                ('url', models.CharField(max_length=500)),
                ('secret', executors_app.encryption.EncryptedTextField(default=sessions_app.notifications.models.new_secret, editable=False)),
                ('kinds', models.JSONField(blank=True, default=sessions_app.notifications.models.all_kinds)),
                ('enabled', models.BooleanField(default=True)),
                ('created_by', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'db_table': 'webhooks',
                'ordering': ('created_at', 'id'),
                'constraints': [models.CheckConstraint(condition=models.Q(('user', None), ('team', None), _connector='XOR'), name='webhook_of_a_user_or_of_a_team')],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('channel', models.CharField(choices=[('email', 'email'), ('webhook', 'webhook')], max_length=8)),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('webhook', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='notifications.webhook')),
                ('payload', models.JSONField(default=dict)),
                ('is_test', models.BooleanField(default=False)),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('sent', 'Sent'), ('failed', 'Failed'), ('dropped', 'Dropped')], default='pending', max_length=8)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('next_attempt_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_error', models.CharField(blank=True, default='', max_length=300)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'db_table': 'notification_deliveries',
                'ordering': ('-created_at', 'id'),
                'indexes': [models.Index(fields=['state', 'next_attempt_at'], name='delivery_due')],
            },
        ),
        migrations.CreateModel(
            name='DeliveredItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('delivery', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='notifications.delivery')),
                ('item', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='told', to='sessions_app.attentionitem')),
                ('target', models.CharField(max_length=64)),
            ],
            options={
                'db_table': 'notification_items',
                'constraints': [models.UniqueConstraint(fields=('item', 'target'), name='one_telling_per_item_and_target')],
            },
        ),
        migrations.AddField(
            model_name='delivery',
            name='items',
            field=models.ManyToManyField(related_name='deliveries', through='notifications.DeliveredItem', to='sessions_app.attentionitem'),
        ),
    ]
