"""The base class of the events of a session's log, and the registry of them all.

An event is declared once, as a subclass of ``Event``: its name on the wire, its fields, and everything that follows
from it. Documents, schema, timeline, attention, audit and import are derived from the declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from sessions_app.attention.rules.notices import AttentionKind, Notice
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.sessions.rules.situation_facts import Label, humanize_code

ALL_KINDS: Final = frozenset(kind.value for kind in AttentionKind)
_LONGEST_NAME: Final = 64
"""Characters of the column with the names of events."""
_declared: Final[dict[str, type[Event]]] = {}
EVENT_CLASSES: Final[Mapping[str, type[Event]]] = MappingProxyType(_declared)
"""Every declared event by its name on the wire. Import it from ``sessions_app.events``, which loads all topics."""


class Inbox(Protocol):
    """What an event may do to the attention items of its session, in the transaction that records it."""

    @property
    def session_id(self) -> str:
        """The session's id."""

    @property
    def last_seq(self) -> int:
        """The number of the last event before this transaction; it distinguishes items of the same kind."""

    def raise_item(self, notice: Notice) -> object:
        """Raise an item, unless one with its key is open."""

    def resolve(self, resolution: str, kinds: Collection[str] = ALL_KINDS, *, key: str = "") -> object:
        """Resolve the open items of these kinds, optionally only the one with this key."""

    def resolve_at_end(self, resolution: str, key: str) -> object:
        """Resolve the item with this key after all events, in one statement with the others of this resolution."""

    def prompt_text(self, message_id: str) -> str:
        """Return the text of a prompt; empty if there is none."""

    def interrupted_wait(self, run_id: str) -> str | None:
        """Return what the run waited for if it was an external wait that has just been interrupted, else None."""

    def has_completed_turn(self) -> bool:
        """Whether a turn of the session has been completed: only then was there a conversation to lose."""

    def forget_ignored_cancel(self, run_id: str) -> None:
        """Resolve the item about a cancel that this turn ignored, because the turn has ended."""

    def work_begins(self) -> None:
        """Resolve what asks for a review, because the agent works again."""

    def work_ends(self) -> None:
        """Ask for a review, or for a decision about an interrupted prompt."""


class PayloadField(NamedTuple):
    """A field of an event: its attribute, its name in the payload, and whether the payload always has it."""

    attribute: str
    name: str
    required: bool


def _name_in_payload(attribute: str) -> str:
    """Return the name of a field in the payload: an underscore after a Python keyword is left out."""
    return attribute.removesuffix("_")


class Event(BaseModel):
    """One kind of event: a record that is validated when it is created.

    A field without a default is always in the payload. One with the default None is left out while it is None.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=_name_in_payload,
        validate_by_name=True,
        loc_by_alias=False,
    )

    name: ClassVar[str] = ""
    """The name on the wire and in stored rows; empty for a base class of events."""
    recorded_by: ClassVar[str] = ""
    """What records it, for the documents."""
    is_audited: ClassVar[bool] = False
    """Whether, when a supervisor records it, it reports something that no user requested at that moment."""
    timeline: ClassVar[Label | None] = None
    """Its text in the timeline; an event whose text depends on its fields defines ``timeline_label`` instead."""
    quotes_prompt: ClassVar[bool] = False
    """Whether the timeline shows the beginning of its prompt."""
    raises: ClassVar[frozenset[AttentionKind]] = frozenset()
    """The kinds of attention items that it may raise."""
    payload_fields: ClassVar[tuple[PayloadField, ...]] = ()

    def __init_subclass__(
        cls,
        *,
        name: str = "",
        recorded_by: str | None = None,
        audited: bool | None = None,
        timeline: Label | None = None,
        quotes_prompt: bool | None = None,
        raises: Collection[AttentionKind] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take what is declared in the class statement; what is left out is inherited, except the name."""
        super().__init_subclass__(**kwargs)
        cls.name = name
        if recorded_by is not None:
            cls.recorded_by = recorded_by
        if audited is not None:
            cls.is_audited = audited
        if timeline is not None:
            cls.timeline = timeline
        if quotes_prompt is not None:
            cls.quotes_prompt = quotes_prompt
        if raises is not None:
            cls.raises = frozenset(raises)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the event, once its fields are known."""
        cls.payload_fields = tuple(
            PayloadField(attribute, _name_in_payload(attribute), field.is_required())
            for attribute, field in cls.model_fields.items()
        )
        if not cls.name:
            return
        if cls.name in _declared:
            raise TypeError(f"Two events have the name {cls.name}.")
        if len(cls.name) > _LONGEST_NAME:
            raise TypeError(f"The name {cls.name} is longer than {_LONGEST_NAME} characters.")
        _declared[cls.name] = cls

    def payload(self) -> dict[str, Any]:
        """Return the payload as it is stored and sent."""
        values = self.__dict__
        return {
            name: values[attribute]
            for attribute, name, required in self.payload_fields
            if required or values[attribute] is not None
        }

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Self:
        """Return the event of a stored payload, which another version or another producer may have written.

        Unknown fields are ignored; a field that is missing or has another type gets the empty value of its type.
        """
        known = {attribute: payload[name] for attribute, name, _ in cls.payload_fields if name in payload}
        try:
            return cls(**known)
        except ValidationError as error:
            unreadable = {problem["loc"][0] for problem in error.errors(include_url=False, include_input=False)}
        empty = {attribute: _empty_value(field) for attribute, field in cls.model_fields.items()}
        readable = {attribute: value for attribute, value in known.items() if attribute not in unreadable}
        return cls.model_construct(**{**empty, **readable})

    @classmethod
    def is_in_timeline(cls) -> bool:
        """Whether the timeline shows this event."""
        return cls.timeline is not None or cls.timeline_label is not Event.timeline_label

    def timeline_label(self) -> Label:
        """Return its text in the timeline."""
        return self.timeline or unknown_event_label(self.name)

    def log_level(self) -> int:
        """Return the level of its line in our own log, if it is audited."""
        return logging.INFO

    def may_change_status(self) -> bool:
        """Whether the session's derived status may follow from it."""
        return False

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise and resolve the attention items that follow from it."""

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Change the rows of an imported session as this event did. Raises ValueError if it is inconsistent.

        The payload is foreign: it may lack fields, and its values may have any type.
        """

    @classmethod
    def foreign_ids(cls, line: LogEvent) -> Mapping[str, tuple[str, object]]:
        """Return the fields with ids that an import replaces by ours: kind and present id of each."""
        return {}


def _empty_value(field: FieldInfo) -> Any:
    """Return the value of a field that cannot be read: None if the field allows it, else the empty one of its type."""
    if not field.is_required():
        return field.default
    kind = field.annotation
    if kind is Any or kind is None or type(None) in get_args(kind):
        return None
    empty_value = get_origin(kind) or kind  # str, int, float, bool, list and dict make their empty value
    return empty_value()


def unknown_event_label(name: str) -> Label:
    """Return the name of an event in words."""
    return Label(humanize_code(name.rpartition(".")[2]).capitalize())


def with_reason(words: str, reason: object) -> str:
    """Return the words, followed by the reason if there is one."""
    if reason:
        return f"{words}: {reason}"
    return words
