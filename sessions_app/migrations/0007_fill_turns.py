"""Fill the rows of turns that release 1.0.0 has written, as far as the conversation and the ledger tell it.

One transaction for each few rows, after their texts are read: a run that is killed is simply run again, and nobody
waits long for a lock. Rows of processes of 1.0.0 that still run stay as they are. What a row lacks is unknown.
"""

from django.db import migrations

from executors_app.wire.replayed_texts import text_digest

ROWS_AT_ONCE = 100
FILLED = ("first_seq", "origin", "prompt", "request_digest", "snapshot_before")
UNASKED_KINDS = ("continue", "retry", "check")
OPEN_STATES = ("running", "waiting")
SEARCHED_EVENTS = 50_000
"""Events before an open turn in which its snapshot is searched, because no index helps."""


def fill_turns(apps, schema_editor):
    """Fill all rows, in the order of their ids."""
    turns = apps.get_model("sessions_app", "Turn").objects.using(schema_editor.connection.alias)
    lacking = turns.filter(first_seq=None, has_process=True).order_by("id")
    rows = list(lacking[:ROWS_AT_ONCE])
    while rows:
        turns.bulk_update([row for row in rows if fill(apps, schema_editor, row)], FILLED)
        rows = list(lacking.filter(id__gt=rows[-1].id)[:ROWS_AT_ONCE])


def fill(apps, schema_editor, turn):
    """Set the fields of one row; return whether its beginning is known."""
    alias = schema_editor.connection.alias
    messages = apps.get_model("sessions_app", "Message").objects.using(alias)
    asked = messages.filter(session_id=turn.session_id, key=turn.message_id, role="user").order_by("-seq").first()
    if asked is None:
        return False
    prompts = apps.get_model("sessions_app", "Prompt").objects.using(alias)
    prompt = prompts.filter(session_id=turn.session_id, message_id=turn.message_id).defer("text").first()
    kind = prompt.kind if prompt else str(asked.payload.get("kind", "user"))
    asked_by_user = prompt is not None and prompt.by_id is not None
    turn.first_seq, turn.prompt = asked.seq - 1, prompt
    turn.origin = "kandev" if kind in UNASKED_KINDS and not asked_by_user else "prompt"
    parts = apps.get_model("sessions_app", "MessagePart").objects.using(alias).filter(message_id=asked.id)
    turn.request_digest = text_digest("".join(parts.order_by("number").values_list("text", flat=True)))
    if turn.state in OPEN_STATES:
        turn.snapshot_before = snapshot_before(apps, alias, turn)
    return True


def snapshot_before(apps, alias, turn):
    """Return the newest snapshot when the agent got the prompt of an open turn; None if none was found."""
    events = apps.get_model("sessions_app", "SessionEvent").objects.using(alias).filter(session_id=turn.session_id)
    began = events.filter(seq__gt=turn.first_seq, name="session.prompt.delivered").order_by("seq").first()
    if began is None:
        return None
    before = events.filter(seq__gt=began.seq - SEARCHED_EVENTS, seq__lt=began.seq)
    taken = before.filter(name="session.workspace.changed").order_by("-seq").first()
    return None if taken is None else str(taken.payload.get("commit", ""))[:64]


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("sessions_app", "0006_object_stores"),
    ]

    operations = [
        migrations.RunPython(fill_turns, migrations.RunPython.noop, atomic=False),
    ]
