from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0004_unfinished_messages'),
    ]

    operations = [
        migrations.AddField(
            model_name='task',
            name='idempotency_key',
            field=models.CharField(blank=True, default='', editable=False, max_length=128),
        ),
        migrations.AddField(
            model_name='task',
            name='asked',
            field=models.CharField(blank=True, default='', editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name='tasksession',
            name='idempotency_key',
            field=models.CharField(blank=True, default='', editable=False, max_length=128),
        ),
        migrations.AddField(
            model_name='tasksession',
            name='asked',
            field=models.CharField(blank=True, default='', editable=False, max_length=64),
        ),
        migrations.AddConstraint(
            model_name='task',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('team', 'idempotency_key'), name='one_task_per_idempotency_key'),
        ),
        migrations.AddConstraint(
            model_name='tasksession',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('task', 'idempotency_key'), name='one_session_per_idempotency_key'),
        ),
    ]
