from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0005_asked_once'),
    ]

    operations = [
        migrations.AlterField(
            model_name='prompt',
            name='kind',
            field=models.CharField(choices=[('user', 'user'), ('continue', 'continue'), ('wait', 'wait'), ('retry', 'retry')], default='user', max_length=10),
        ),
        migrations.AddField(
            model_name='prompt',
            name='attempt',
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='prompt',
            name='not_before',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='prompt',
            name='trouble',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='prompt',
            name='trouble_message',
            field=models.TextField(blank=True, default=''),
        ),
        migrations.AddField(
            model_name='tasksession',
            name='stalled_since',
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
