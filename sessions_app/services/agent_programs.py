"""``domain.agent_programs`` of a session's own agent and place."""

from __future__ import annotations

from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.domain.agent_programs import NEEDS_PERSON, explain
from sessions_app.models import TaskSession


def explained(session: TaskSession, code: str, said: str) -> str:
    """What to tell people of a start, or a turn, that failed with ``code``; ``said`` where there is no more to say."""
    if code not in NEEDS_PERSON:
        return said
    profile = session.agent_profile
    try:
        kind = agent_type(profile.agent_type)
    except UnknownPlugin:
        return said
    place = session.executor
    program = next(iter(profile.argv(place.runtime)), "")
    return explain(code, said, kind=kind, program=program, profile=profile.name, executor=place.name)
