"""The tools that push a session's branch, or its base after a merge."""

from __future__ import annotations

from django.contrib.auth.models import User

from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import FinishKind, branch_name
from sessions_app.mcp_server import arguments, results
from sessions_app.mcp_server.reading import visible_session
from sessions_app.remotes import push_requests


def preview_push(user: User, values: arguments.PreviewPushArguments) -> results.PushPreview:
    """Say what a push would do. Asks the server only for those who may push."""
    session = visible_session(user, values.session_id)
    may_push = may_finish(user, session.task.team, FinishKind.PUSH)
    state = push_requests.read_push_state(session, values.target, look=may_push)
    return results.PushPreview(
        session_id=session.id,
        target=state.target,
        address=state.address,
        branch=state.name,
        commit=state.commit,
        remote_commit=state.remote_commit,
        overwrites=state.overwrites,
        problem=state.problem,
        message=state.message,
        warning=push_requests.CI_WARNING,
    )


def push_session(user: User, values: arguments.PushSessionArguments) -> results.Push:
    """Request a push; the same request again returns the same push, with its present state."""
    session = visible_session(user, values.session_id)
    intent = push_requests.request_push(
        session,
        user,
        target=values.target,
        commit=values.commit,
        expected=values.remote_commit,
        overwrite=values.overwrite,
    )
    return results.Push(
        session_id=session.id,
        state=intent.state,
        address=intent.remote,
        branch=branch_name(intent.target_ref),
        commit=intent.branch_commit,
        error_code=intent.error_code,
        error_message=intent.error_message,
        answer=intent.answer,
    )
