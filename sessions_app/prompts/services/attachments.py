"""The files of prompts: check what a client sends, store it with its prompt, and read it for the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sessions_app.kernel.services.errors import (
    AttachmentMissing,
    AttachmentTooLarge,
    AttachmentUnsupported,
    Invalid,
    MediaTypeUnsupported,
)
from sessions_app.models import Attachment, Prompt, SessionTransaction, TaskSession
from sessions_app.prompts.rules import attachments as rules
from sessions_app.prompts.rules.attachments import AttachedFile

BLOCKS_KEY: Final = "prompt_blocks"
"""Metadata key: the kinds of content blocks that the agent accepted in prompts at its last start."""
_MEGABYTE: Final = 1024 * 1024


def check_files(files: Iterable[tuple[str, bytes, str]]) -> list[AttachedFile]:
    """Return the files of a request, given as name, content and declared media type (empty: not declared).

    Raises Invalid, AttachmentTooLarge, MediaTypeUnsupported.
    """
    checked: list[AttachedFile] = []
    for name, content, declared in files:
        if len(checked) == rules.MAX_FILES:
            raise Invalid(f"A prompt can carry at most {rules.MAX_FILES} files.", field="attachments")
        checked.append(_check_file(rules.clean_name(name), content, declared))
    if sum(len(each.content) for each in checked) > rules.MAX_TOTAL_BYTES:
        raise AttachmentTooLarge(
            f"The files of a prompt can have at most {rules.MAX_TOTAL_BYTES // _MEGABYTE} MiB in total.",
            limit=rules.MAX_TOTAL_BYTES,
        )
    return checked


def _check_file(name: str, content: bytes, declared: str) -> AttachedFile:
    if not content:
        raise Invalid(f"“{name}” is empty.", field="attachments")
    if len(content) > rules.MAX_FILE_BYTES:
        most = rules.MAX_FILE_BYTES // _MEGABYTE
        raise AttachmentTooLarge(f"“{name}” is larger than {most} MiB.", name=name, limit=rules.MAX_FILE_BYTES)
    media_type = rules.media_type_of(content)
    if media_type is None:
        raise MediaTypeUnsupported(f"“{name}” cannot be sent. A prompt can carry {rules.TYPES_SENTENCE}.", name=name)
    if declared and rules.block_of(declared) in ("image", "audio") and declared != media_type:
        raise MediaTypeUnsupported(f"“{name}” is declared as {declared}, but it is {media_type}.", name=name)
    return AttachedFile(name, media_type, content)


def store_files(session: TaskSession, files: Sequence[AttachedFile]) -> list[dict[str, Any]]:
    """Store the contents, in the prompt's own transaction; return the value of ``Prompt.attachments``.

    Raises AttachmentUnsupported if the session's agent has reported that it does not accept one of them.
    """
    described = [each.described() for each in files]
    refuse_untaken(session, described)
    rows = [
        Attachment(session=session, sha256=told["sha256"], media_type=each.media_type, content=each.content)
        for told, each in zip(described, files, strict=True)
    ]
    Attachment.objects.bulk_create(rows, ignore_conflicts=True)
    return described


def refuse_untaken(session: TaskSession, described: Sequence[Mapping[str, Any]]) -> None:
    """Raise AttachmentUnsupported for a file that the session's agent does not accept, as far as that is known."""
    taken = accepted_blocks(session)
    missing = None if taken is None else rules.first_untaken(described, taken)
    if missing is not None:
        what = rules.CAPABILITY_BY_BLOCK[rules.block_of(missing["media_type"])]
        raise AttachmentUnsupported(
            f"This agent does not accept {what} in a prompt: “{missing['name']}” was not sent.", name=missing["name"]
        )


def accepted_blocks(session: TaskSession) -> list[str] | None:
    """Return what the agent accepts in a prompt beside text: ``image``, ``audio``, ``resource``; None if unknown."""
    known = session.metadata.get(BLOCKS_KEY)
    if isinstance(known, list):
        return [str(each) for each in known]
    return None


def remember_blocks(transaction: SessionTransaction, capabilities: Any) -> None:
    """Store what an agent that has just started accepts in a prompt."""
    told = capabilities.get("prompt") if isinstance(capabilities, dict) else None
    if isinstance(told, list):
        known = sorted(set(map(str, told)) & set(rules.CAPABILITY_BY_BLOCK))
    else:
        known = None
    metadata = {name: value for name, value in transaction.session.metadata.items() if name != BLOCKS_KEY}
    transaction.set_fields(metadata=metadata if known is None else {**metadata, BLOCKS_KEY: known})


def content_blocks(row: Prompt) -> list[dict[str, Any]]:
    """Return the ACP content blocks of a prompt's files. Raises AttachmentMissing."""
    if not row.attachments:
        return []
    digests = [described["sha256"] for described in row.attachments]
    stored = Attachment.objects.filter(session_id=row.session_id, sha256__in=digests)
    contents = {each.sha256: bytes(each.content) for each in stored}
    if missing := next((each for each in row.attachments if each["sha256"] not in contents), None):
        raise AttachmentMissing(name=missing["name"])
    return [rules.content_block(each, contents[each["sha256"]]) for each in row.attachments]


def require_contents(row: Prompt) -> None:
    """Raise AttachmentMissing if a file of the prompt is not stored here, as after an import without it."""
    digests = {described["sha256"] for described in row.attachments}
    known = Attachment.objects.filter(session_id=row.session_id, sha256__in=digests).values_list("sha256", flat=True)
    if digests.difference(known):
        raise AttachmentMissing
