from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0017_prompt_editors'),
    ]

    operations = [
        migrations.AddField(
            model_name='suspension',
            name='waits_by_itself',
            field=models.BooleanField(default=False),
        ),
    ]
