"""Write the prompts of an imported session, and the files that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils import timezone

from sessions_app.kernel.rules.rebuild import PromptRow, SessionRebuild
from sessions_app.kernel.rules.states import PromptKind, PromptState
from sessions_app.models import Attachment, Prompt, TaskSession
from sessions_app.portable.rows.batches import insert_rows
from sessions_app.portable.rows.parents import find_user
from sessions_app.portable.snapshot_values import SnapshotValues
from sessions_app.prompts.events import LARGEST_VERSION, USER_NAME_LIMIT
from sessions_app.prompts.rules.attachments import MAX_FILES, AttachedFile, clean_name, media_type_of

_NEEDS_NO_TEXT = (PromptState.DONE, PromptState.DISMISSED, PromptState.WITHDRAWN)
"""States of prompts that are never sent again."""


def write_prompts(session: TaskSession, snapshot: SnapshotValues, rows: SessionRebuild, last_seq: int) -> list[str]:
    """Write the prompts; return a description of each that had to be left out."""
    is_newer = snapshot.number("last_seq") >= last_seq
    recorded, problems = _read_prompts(snapshot)
    for message_id, values in recorded.items():
        problem = _update_row(rows, message_id, values, is_newer=is_newer)
        if problem:
            problems.append(problem)
    written = {}
    for message_id, row in rows.prompts.items():
        if not row.text and row.state not in _NEEDS_NO_TEXT:
            problems.append(f"prompt {message_id[:40]!r} has no text")
            continue
        written[message_id] = _prompt(session, row, recorded.get(message_id, SnapshotValues(None)))
    insert_rows(list(written.values()), [rows.prompts[message_id].created_at for message_id in written])
    _link_replacements(written, recorded)
    _restore_order(written, recorded)
    return problems


def _read_prompts(snapshot: SnapshotValues) -> tuple[dict[str, SnapshotValues], list[str]]:
    """Return the prompts of the snapshot by message id, and a description of each without a usable one."""
    recorded: dict[str, SnapshotValues] = {}
    problems = []
    for values in snapshot.rows("prompts"):
        message_id = values.text("message_id", 129)
        if not 0 < len(message_id) <= 128 or message_id in recorded:
            problems.append(f"a prompt has no valid message_id, or a repeated one: {message_id[:40]!r}")
            continue
        recorded[message_id] = values
    return recorded, problems


def _update_row(rows: SessionRebuild, message_id: str, values: SnapshotValues, *, is_newer: bool) -> str:
    """Add what the snapshot has of a prompt to what the log told of it; return what is lost, if anything is."""
    state = values.one_of("state", set(PromptState), PromptState.HELD)
    created_at = values.time("created_at")
    if message_id not in rows.prompts:
        rows.prompts[message_id] = PromptRow(message_id, values.text("kind"), state, created_at or timezone.now())
    row = rows.prompts[message_id]
    row.created_at = created_at or row.created_at
    if is_newer:
        row.state = state
    version, text = min(max(values.number("version"), 1), LARGEST_VERSION - 1), values.text("text")
    if version < row.version and row.text:
        return ""  # the log has an edit that is newer than the snapshot, with all of its text
    is_outdated = version < row.version and row.state not in _NEEDS_NO_TEXT
    if version >= row.version:
        row.edited_by = values.text("edited_by", USER_NAME_LIMIT)
    row.text, row.version = text or row.text, max(version, row.version)
    if is_outdated:
        return f"prompt {message_id[:40]!r} has an earlier text: the record lacks its last edit"
    return ""


def _prompt(session: TaskSession, row: PromptRow, values: SnapshotValues) -> Prompt:
    kind = row.kind if row.kind in set(PromptKind) else PromptKind.USER
    return Prompt(
        session=session,
        message_id=row.message_id,
        text=row.text,
        attachments=_read_attachments(values),
        kind=kind,
        state=row.state,
        text_version=row.version,
        edited_by=row.edited_by,
        first_digest=values.text("first_digest", 64),
        by=find_user(values.text("by")),
    )


def _read_attachments(prompt: SnapshotValues) -> list[dict[str, Any]]:
    """Return the files that a prompt names; a prompt whose files are not in the record can be read, but not resent."""
    files = []
    for values in prompt.rows("attachments")[:MAX_FILES]:
        file = {
            "name": clean_name(values.text("name")),
            "media_type": values.text("media_type", 100),
            "size": values.number("size"),
            "sha256": values.text("sha256", 64),
        }
        files.append(file)
    return files


def _link_replacements(written: Mapping[str, Prompt], recorded: Mapping[str, SnapshotValues]) -> None:
    """Link the prompts that were resent or continued to those that replaced them."""
    for name in ("resent_as", "continued_by"):
        taken: set[str] = set()
        for message_id, values in recorded.items():
            replacement = values.text(name, 128)
            if message_id in written and replacement in written and replacement not in taken:
                taken.add(replacement)
                Prompt.objects.filter(id=written[message_id].pk).update(**{name: written[replacement]})


def _restore_order(written: Mapping[str, Prompt], recorded: Mapping[str, SnapshotValues]) -> None:
    """Give the unfinished prompts the order that their users chose: their ids are new, and as they were created."""
    unfinished = [
        (recorded[message_id].number("place"), prompt)
        for message_id, prompt in written.items()
        if message_id in recorded and prompt.state not in _NEEDS_NO_TEXT and recorded[message_id].number("place")
    ]
    places = sorted(int(prompt.pk) for _, prompt in unfinished)
    for place, (_, prompt) in zip(places, sorted(unfinished, key=lambda each: each[0]), strict=True):
        if place != prompt.pk:
            Prompt.objects.filter(id=prompt.pk).update(place=place)


def named_files(session: TaskSession) -> set[str]:
    """Return the digests of the files that the session's prompts name."""
    digests: set[str] = set()
    for files in session.prompts.values_list("attachments", flat=True).iterator():
        digests.update(file["sha256"] for file in files)
    return digests


def write_attachments(session: TaskSession, contents: Iterable[bytes]) -> None:
    """Write the files of the session's prompts."""
    for content in contents:
        file = AttachedFile("", media_type_of(content) or "", content)
        Attachment.objects.create(
            session=session, sha256=file.described()["sha256"], media_type=file.media_type, content=content
        )
