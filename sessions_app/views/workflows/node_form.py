"""The settings of one node as a form, and what of it becomes a change of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django import forms

from sessions_app.services.workflow_texts import changed_text, data_of_node
from sessions_app.views.workflows.forms import Whole
from sessions_app.workflows.editing import KEPT_PORTS, NotEditable
from sessions_app.workflows.limits import MAX_ITERATIONS, MAX_RETRIES

PREFIX: Final = "node"
KEEP: Final = "keep_session"
Make = Callable[[], forms.Field]


def _line(label: str, **more: Any) -> Make:
    return lambda: forms.CharField(label=label, required=False, max_length=200, **more)


def _lines(label: str, rows: int = 6, **more: Any) -> Make:
    area = forms.Textarea(attrs={"rows": rows, "spellcheck": "false"})
    return lambda: forms.CharField(label=label, required=False, strip=False, widget=area, **more)


_TIMEOUT: Final[Mapping[str, Make]] = {"timeout": lambda: Whole("Timeout in seconds", 604_800)}
_TRIGGERS: Final = (("manual", "by hand"), ("cron", "by the clock"), ("idle", "when the team is idle"))
FIELDS: Final[Mapping[str, Mapping[str, Make]]] = {
    "agent": {
        "runner": _line("Runner", help_text="The agent’s kind, as claude-code; without one the workflow’s agent."),
        "model": _line("Model"),
        "prompt": _lines("Prompt"),
        **_TIMEOUT,
        KEEP: lambda: forms.BooleanField(
            label="Keep the session",
            required=False,
            help_text="In a loop it goes on in the conversation of the iteration before. It gets the inputs "
            f"{' and '.join(KEPT_PORTS)}: what it is told first, and what from then on.",
        ),
    },
    "shell": {"script": _lines("Script"), **_TIMEOUT},
    "function": {"code": _lines("Code")},
    "loop": {"maxIterations": lambda: Whole("Iterations at most", MAX_ITERATIONS)},
    "gate": {"maxRetries": lambda: Whole("Retries at most", MAX_RETRIES)},
    "trigger": {
        "triggerType": lambda: forms.ChoiceField(label="Starts", choices=_TRIGGERS),
        "cron": _line("Times (cron, in UTC)", help_text="Five fields, as “*/5 * * * *”."),
        "idleMinutes": lambda: Whole("Minutes of being idle", 10_080),
    },
    "workdir": {"path": _line("Path")},
}
"""By type of node; any has a label."""
ALIASES: Final = {"script": "shell"}


class NodeForm(forms.Form):
    """The settings of a node, as they stand in a text.

    Raises NotEditable where there is no such node, and ChecksUnavailable.
    """

    def __init__(self, text: str, node: str, data: Any = None):
        self.text, self.node = text, node
        self.written = data_of_node(text, node)
        self.kind = str(self.written["type"])
        super().__init__(data, prefix=PREFIX, initial=self._initial())
        self.fields["label"] = forms.CharField(label="Label", required=False, max_length=200)
        for name, make in FIELDS.get(ALIASES.get(self.kind, self.kind), {}).items():
            if isinstance(self.written.get(name, ""), str | int | float):
                self.fields[name] = make()

    def _initial(self) -> dict[str, Any]:
        ports = self.written.get("inputs")
        names = (
            {str(port.get("name")) for port in ports if isinstance(port, dict)} if isinstance(ports, list) else set()
        )
        kept = self.written.get("resumable") is True or names >= set(KEPT_PORTS)
        return {"triggerType": "manual", **self.written, KEEP: kept}

    def applied(self) -> str:
        """The text with what was changed here; the form is valid. Raises NotEditable and ChecksUnavailable."""
        changes: dict[str, Any] = {}
        for name in self.fields:
            value, before = self._given(name), self.initial.get(name)
            if value == (before if before is not None else self._given_empty(name)):
                continue
            changes[name] = value if name == KEEP or value not in ("", None) else None
        kept = changes.pop(KEEP, None)
        if not changes and kept is None:
            return self.text
        return changed_text(self.text, self.node, changes, session_kept=kept)

    def _given(self, name: str) -> Any:
        """What was given; lines end as they do in files, and the last as it did."""
        value = self.cleaned_data.get(name)
        if not isinstance(value, str):
            return value
        value = value.replace("\r\n", "\n")
        before = self.initial.get(name)
        keeps_end = isinstance(before, str) and before.endswith("\n") and value and not value.endswith("\n")
        return f"{value}\n" if keeps_end else value

    def _given_empty(self, name: str) -> Any:
        return None if isinstance(self.fields[name], forms.IntegerField) else ""


def node_form(text: str, node: str, data: Any = None) -> NodeForm | None:
    """The form of a node; None where the text has no such node. Raises ChecksUnavailable."""
    try:
        return NodeForm(text, node, data) if node else None
    except NotEditable:
        return None
