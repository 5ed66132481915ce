from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0009_usage_of_agents'),
    ]

    operations = [
        migrations.AddField(
            model_name='tasksession',
            name='start_rank',
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
        migrations.AddIndex(
            model_name='tasksession',
            index=models.Index(condition=models.Q(('start_rank__isnull', False)), fields=['start_rank'], name='session_start_rank'),
        ),
        migrations.AddIndex(
            model_name='tasksession',
            index=models.Index(condition=models.Q(('next_restart_at__isnull', False)), fields=['next_restart_at'], name='session_next_restart'),
        ),
    ]
