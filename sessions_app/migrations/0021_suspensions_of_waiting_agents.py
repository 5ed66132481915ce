from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0020_turn_recorded_at'),
    ]

    operations = [
        migrations.AddField(
            model_name='suspension',
            name='waits_by_itself',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
