"""What the conversation view shows: a projection of the log, text in parts of bounded size."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from django.db import models

from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession

PART_LIMIT = 64 * 1024
"""Characters of one part: appending to a text that grows in one row is quadratic."""


class Message(TeamModel):
    """One message of the conversation, in the order of ``seq`` (the event that added it)."""

    team_path = "session__task__team"
    ROLES = ("user", "agent", "thought", "tool", "status")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="messages")
    seq = models.BigIntegerField()
    updated_seq = models.BigIntegerField()
    role = models.CharField(max_length=10, choices=[(r, r) for r in ROLES])
    key = models.CharField(max_length=200, blank=True, default="")
    """What later lines name it by: a tool call's id, a prompt's message_id."""
    payload = models.JSONField(default=dict)
    complete = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "session_messages"
        ordering = ("seq",)
        constraints = (models.UniqueConstraint(fields=("session", "seq"), name="one_message_per_seq"),)
        indexes = (
            models.Index(fields=("session", "key"), name="message_by_key"),
            models.Index(fields=("session", "updated_seq"), name="message_by_update"),
        )

    def __str__(self) -> str:
        return f"{self.role} message {self.seq}"


class MessagePart(models.Model):
    """A piece of a message's text, at most ``PART_LIMIT`` characters."""

    message = models.ForeignKey(Message, models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    text = models.TextField()

    class Meta:
        db_table = "session_message_parts"
        ordering = ("number",)
        constraints = (models.UniqueConstraint(fields=("message", "number"), name="one_part_per_number"),)

    def __str__(self) -> str:
        return f"part {self.number}"


def texts_of(messages: Iterable[Message]) -> dict[uuid.UUID, str]:
    """The whole text of each message, by id, in one query."""
    texts: dict[uuid.UUID, list[str]] = {message.id: [] for message in messages}
    rows = MessagePart.objects.filter(message_id__in=texts).order_by("message_id", "number")
    for message_id, text in rows.values_list("message_id", "text"):
        texts[message_id].append(text)
    return {key: "".join(parts) for key, parts in texts.items()}
