"""Hand models over to ``accounts``, ``notifications`` and ``workflows``: in Django's state, and in the content types.

No table is touched. Permissions, who has them, and the admin's history refer to content types by id, so they survive
because each content type keeps its row and gets another label.
"""

import django.db.models.deletion
from django.db import migrations, models

from sessions_app import moved_models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_take_over_models'),
        ('admin', '0003_logentry_add_action_flag_choices'),
        ('auth', '0012_alter_user_first_name_max_length'),
        ('contenttypes', '0002_remove_content_type_name'),
        ('notifications', '0001_take_over_models'),
        ('sessions_app', '0023_attention_of_runs'),
        ('workflows', '0001_take_over_models'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name='attentionitem',
                    name='run',
                    field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='attention', to='workflows.workflowrun'),
                ),
                migrations.AlterField(
                    model_name='attentionitem',
                    name='workflow',
                    field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='attention', to='workflows.workflow'),
                ),
                # Each model after those that refer to it.
                migrations.DeleteModel(name='NodeRun'),
                migrations.DeleteModel(name='WorkflowRun'),
                migrations.DeleteModel(name='Workflow'),
                migrations.DeleteModel(name='DeliveredItem'),
                migrations.DeleteModel(name='Delivery'),
                migrations.DeleteModel(name='Webhook'),
                migrations.DeleteModel(name='NotificationSettings'),
                migrations.DeleteModel(name='ApiToken'),
                migrations.DeleteModel(name='AttemptCount'),
                migrations.DeleteModel(name='LoginLink'),
                migrations.DeleteModel(name='Preferences'),
                migrations.DeleteModel(name='TeamRole'),
            ],
        ),
        migrations.RunPython(moved_models.rename_content_types, moved_models.restore_content_types),
    ]
