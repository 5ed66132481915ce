"""Comments on the changes of a session's branch: write them, see whether their lines are still the same, send them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from django.contrib.auth.models import User
from django.db.models import QuerySet

from executors_app.machine.git.branch_changes import MAX_CONTEXT, MAX_PATHS
from executors_app.repositories.recovery_refs import read_saved_content
from executors_app.wire.errors import AgentctlForeign, AgentctlRefused, AgentctlUnreachable, ExecutorError, NotKept
from executors_app.wire.protocol import Code
from sessions_app.kernel.rules.states import PromptState
from sessions_app.kernel.services.errors import CommentsChanged, Conflict, Invalid, NotFound, TooManyComments
from sessions_app.kernel.transactions import lock_session, lock_timeout
from sessions_app.models import Prompt, ReviewComment, TaskSession, session_transaction
from sessions_app.prompts.services import UNSTORABLE_CHARACTERS, add_to_queue, validate_prompt
from sessions_app.review.models import pending_comments, with_prompt_states
from sessions_app.review.rules import comments as rules
from sessions_app.review.rules.comments import Lines
from sessions_app.review.services import read_branch_hunks
from sessions_app.workspace.services.workspace import ask_agentctl, find_saved_work

MAX_LISTED: Final = 200
"""Comments that are listed: all that wait, and the newest ones that were sent."""
_COMPARED_FILES: Final = 3 * MAX_PATHS
_FILES_READ: Final = 20
"""Files that are read whole because they no longer differ from the base."""


def list_comments(session: TaskSession) -> list[ReviewComment]:
    """Return the comments that wait, and the newest others, each with ``prompt_state`` and ``is_pending``."""
    rows = with_prompt_states(session.review_comments.all())
    found: list[ReviewComment] = []
    for row in rows.order_by("-created_at", "-id")[: rules.MAX_STORED]:
        row.is_pending = _is_pending(row)  # type: ignore[attr-defined]
        if row.is_pending or len(found) < MAX_LISTED:  # type: ignore[attr-defined]
            found.append(row)
    return found[::-1]


def find_comment(session: TaskSession, comment_id: uuid.UUID) -> ReviewComment:
    """Return one comment as ``list_comments`` does. Raises NotFound."""
    rows = with_prompt_states(session.review_comments.all())
    row: ReviewComment | None = rows.filter(id=comment_id).first()
    if row is None:
        raise NotFound("The session has no such comment.")
    row.is_pending = _is_pending(row)  # type: ignore[attr-defined]
    return row


def _is_pending(row: ReviewComment) -> bool:
    """Return the same as ``pending_comments``, of a row with ``prompt_state``."""
    state = row.prompt_state  # type: ignore[attr-defined]
    return not row.sent_with or state == PromptState.WITHDRAWN


def add_comment(
    session: TaskSession,
    by: User,
    *,
    path: str,
    side: str,
    first_line: int,
    last_line: int,
    text: str,
    excerpt: str | None = None,
    version: str = "",
    id: uuid.UUID | None = None,  # noqa: A002  (the name of the field)
) -> tuple[ReviewComment, bool]:
    """Store a comment; return it, and whether it is new. ``excerpt``: the lines as seen; by default as they are now.

    Repeating an ``id`` returns the first row. Raises Invalid, Conflict, TooManyComments, and ExecutorError if the
    lines cannot be read.
    """
    _check_range(first_line, last_line)
    _check_text(text)
    if len(rules.prompt_path(path)) > rules.MAX_PATH:
        raise Invalid("This path is too long to be named in a prompt.", field="path")
    key = id or uuid.uuid4()
    if (earlier := _earlier(session, by, key)) is not None:
        return earlier, False
    if excerpt is None:
        excerpt, version = read_excerpt(session, path, side, first_line, last_line)
    quoted = rules.readable_lines(excerpt)
    if len(quoted) > rules.MAX_EXCERPT or quoted.count("\n") >= rules.MAX_RANGE:
        raise Invalid("This is about too many lines for one comment. Select fewer.", field="last_line")
    with lock_session(session.id, lock_timeout()) as locked:
        # The session's row is locked, so of two requests with this id the second finds the first one's row.
        if (earlier := _earlier(session, by, key)) is not None:
            return earlier, False
        if pending_comments(locked.review_comments.all()).count() >= rules.MAX_PENDING:
            raise TooManyComments(limit=rules.MAX_PENDING)
        _make_room(locked)
        row = ReviewComment.objects.create(
            id=key,
            session=locked,
            author=by,
            author_name=by.get_username(),
            path=path,
            side=side,
            first_line=first_line,
            last_line=last_line,
            excerpt=quoted,
            version=version,
            text=text,
        )
    return row, True


def edit_comment(session: TaskSession, comment_id: uuid.UUID, by: User, text: str) -> ReviewComment:
    """Change the text of a comment that waits. Raises NotFound, Conflict if it is another user's or was sent."""
    _check_text(text)
    with lock_session(session.id, lock_timeout()) as locked:
        row = _lock_pending(locked, comment_id)
        if row.author_id != by.pk:
            raise Conflict("Only its author can change a comment. You can delete it, or write another one.")
        row.text = text
        row.save(update_fields=["text", "updated_at"])
    return row


def delete_comment(session: TaskSession, comment_id: uuid.UUID) -> None:
    """Delete a comment that waits. Raises NotFound, and Conflict if it was sent."""
    with lock_session(session.id, lock_timeout()) as locked:
        _lock_pending(locked, comment_id).delete()


def send_comments(
    session: TaskSession, message_id: str, by: User, *, only: Sequence[uuid.UUID] | None = None
) -> tuple[Prompt, bool]:
    """Send all comments that wait as one prompt; return it, and whether it is new.

    Comments and prompt change in one transaction, so each comment is in one prompt, once. ``only``: the comments that
    the caller has seen. Repeating a ``message_id`` returns the first prompt. Raises CommentsChanged if these are not
    exactly those that wait, or not those of the first prompt, and what ``queue_prompt`` raises.
    """
    if (earlier := _earlier_prompt(session, message_id, only)) is not None:
        return earlier, False
    rows = list(pending_comments(session.review_comments.all()))
    if not rows:
        raise Conflict("No comments wait to be sent.")
    if only is not None and set(only) != {row.id for row in rows}:
        raise CommentsChanged
    text = rules.compose_prompt(rows)
    validate_prompt(message_id, text)
    with session_transaction(session.id) as transaction:
        if (earlier := _earlier_prompt(session, message_id, only)) is not None:
            return earlier, False
        now = pending_comments(transaction.session.review_comments.all())
        if _versions(now) != _versions(rows):
            raise CommentsChanged
        prompt = add_to_queue(transaction, message_id, text, by)
        transaction.session.review_comments.filter(id__in=[row.id for row in rows]).update(sent_with=message_id)
    return prompt, True


def read_excerpt(session: TaskSession, path: str, side: str, first: int, last: int) -> tuple[str, str]:
    """Return lines of a changed file as they are now, and its version. Raises Invalid, ExecutorError."""
    file = next(_read_files(session, [path]))
    lines = rules.numbered_lines(file["hunks"], side)
    if not lines and file["now"] is not None:
        lines = file["now"]
    wanted = [lines[number] for number in range(first, last + 1) if number in lines]
    if len(wanted) <= last - first:
        raise Invalid("The file has no such lines to comment on.", field="last_line")
    return "\n".join(wanted), file["version"]


def compare_comments(session: TaskSession, comments: Sequence[ReviewComment]) -> dict[uuid.UUID, Lines]:
    """Return for each comment whether its lines are still what its author saw; unknown where that cannot be read."""
    paths = list(dict.fromkeys(comment.path for comment in reversed(comments)))[:_COMPARED_FILES]
    found = dict.fromkeys((comment.id for comment in comments), Lines.UNKNOWN)
    for file in _read_where_possible(session, paths):
        for comment in comments:
            if comment.path == file["path"]:
                found[comment.id] = _compare(comment, file)
    return found


def _compare(comment: ReviewComment, file: dict[str, Any]) -> Lines:
    if file["now"] is not None:
        return rules.compare_lines(comment, file["now"], is_whole=True)
    if file["left_out"] or not file["hunks"]:
        return Lines.UNKNOWN
    lines = rules.numbered_lines(file["hunks"], comment.side)
    return rules.compare_lines(comment, lines, is_whole=not file["truncated"])


def _read_where_possible(session: TaskSession, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from _read_files(session, paths)
    except ExecutorError:
        return  # what was not read is unknown


def _read_files(session: TaskSession, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the hunks of files, with all lines around them; ``now`` has the lines of a file that no longer differs."""
    kept = False
    for start in range(0, len(paths), MAX_PATHS):
        part = paths[start : start + MAX_PATHS]
        try:
            answer = read_branch_hunks(session, part, MAX_CONTEXT, kept=kept)
        except (AgentctlUnreachable, AgentctlForeign, AgentctlRefused) as error:
            if kept or (isinstance(error, AgentctlRefused) and error.refusal != Code.WORKTREE_MISSING):
                raise
            kept = True
            try:
                answer = read_branch_hunks(session, part, MAX_CONTEXT, kept=True)
            except NotKept:
                raise error from None
        yield from _with_content(session, answer["files"], kept=kept)


def _with_content(session: TaskSession, files: Iterable[dict[str, Any]], *, kept: bool) -> Iterator[dict[str, Any]]:
    room = _FILES_READ
    for file in files:
        now = None
        if not file["change"] and not file["left_out"] and room:
            room -= 1
            now = _content_lines(session, file["path"], kept=kept)
        yield {**file, "now": now}


def _content_lines(session: TaskSession, path: str, *, kept: bool) -> dict[int, str] | None:
    """Return the lines of a file; none if there is no such file any more, None if they are not known."""
    try:
        if kept:
            content = read_saved_content(find_saved_work(session), path)
        else:
            content = ask_agentctl(session, lambda client: client.read_file(path))
    except AgentctlRefused as error:
        return {} if error.refusal == Code.NOT_FOUND else None
    except ExecutorError:
        return None
    if content["binary"] or content["truncated"]:
        return None
    return rules.text_lines(content["content"])


def _check_range(first: int, last: int) -> None:
    if not 1 <= first <= last <= rules.MAX_LINE_NUMBER:
        raise Invalid("The last line must not be before the first one, which is 1 or more.", field="last_line")
    if last - first >= rules.MAX_RANGE:
        raise Invalid(f"A comment can be about at most {rules.MAX_RANGE} lines.", field="last_line")


def _check_text(text: str) -> None:
    if not text.strip():
        raise Invalid("The comment is empty.", field="text")
    if UNSTORABLE_CHARACTERS.search(text):
        raise Invalid("The comment contains characters that are not valid text.", field="text")
    if len(text) > rules.MAX_TEXT:
        raise Invalid(f"The comment is longer than {rules.MAX_TEXT} characters.", field="text")


def _earlier(session: TaskSession, by: User, key: uuid.UUID) -> ReviewComment | None:
    row = ReviewComment.objects.filter(id=key).first()
    if row is not None and (row.session_id != session.id or row.author_id != by.pk):
        raise Conflict("Another comment has this id.")
    return row


def _earlier_prompt(session: TaskSession, message_id: str, only: Sequence[uuid.UUID] | None) -> Prompt | None:
    prompt: Prompt | None = session.prompts.filter(message_id=message_id).first()
    if prompt is None:
        return None
    carried = session.review_comments.filter(sent_with=message_id)
    # Without its first words, it was edited.
    if not prompt.text.startswith(rules.PROMPT_HEAD) and not carried.exists():
        raise Conflict("Another prompt has this message_id.", message_id=message_id)
    # Of comments that were written later, nobody may be told that they were sent.
    if only and session.review_comments.filter(id__in=only).exclude(sent_with=message_id).exists():
        raise CommentsChanged
    return prompt


def _lock_pending(session: TaskSession, comment_id: uuid.UUID) -> ReviewComment:
    row = find_comment(session, comment_id)
    if not _is_pending(row):
        raise Conflict("This comment was sent to the agent, so it was not changed.")
    return row


def _make_room(session: TaskSession) -> None:
    """Delete the oldest comments that were sent, if there are as many as a session may have."""
    surplus = session.review_comments.count() - rules.MAX_STORED + 1
    if surplus <= 0:
        return
    waiting = pending_comments(session.review_comments.all()).values("id")
    oldest = session.review_comments.exclude(id__in=list(waiting.values_list("id", flat=True)))
    session.review_comments.filter(id__in=list(oldest.values_list("id", flat=True)[:surplus])).delete()


def _versions(rows: Iterable[ReviewComment] | QuerySet[ReviewComment]) -> list[tuple[Any, ...]]:
    return [(row.id, row.updated_at) for row in rows]
