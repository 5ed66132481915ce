"""What a deleted session leaves behind is written down with its deletion: the proof that it may go."""

from __future__ import annotations

from collections.abc import Iterator

from sessions_app.models import Leftover, TaskSession


def note(session: TaskSession) -> None:
    """A session is about to be deleted, in the caller's transaction."""
    repository = session.task.repository
    Leftover.objects.update_or_create(
        session_id=session.id,
        defaults={
            "executions": [str(key) for key in session.executions.values_list("id", flat=True)],
            "repository_path": repository.path if repository else "",
        },
    )


def of_deleted() -> Iterator[Leftover]:
    """Those of sessions that are deleted; one that was imported again has its things back."""
    rows = list(Leftover.objects.all())
    back = set(TaskSession.objects.filter(id__in=[row.session_id for row in rows]).values_list("id", flat=True))
    Leftover.objects.filter(session_id__in=back).delete()
    return (row for row in rows if row.session_id not in back)


def settle(row: Leftover, **done: bool) -> None:
    """Something of it is gone; with the last of it the row goes."""
    Leftover.objects.filter(session_id=row.session_id).update(**done)
    Leftover.objects.filter(session_id=row.session_id, files_gone=True, refs_gone=True).delete()
