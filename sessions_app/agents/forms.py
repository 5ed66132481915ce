"""The form for an MCP server of a team or a repository."""

from __future__ import annotations

import shlex
from typing import Any, Final

from django import forms

_PROGRAM: Final = "program"
_HTTP: Final = "http"


class McpServerForm(forms.Form):
    """The form for one server."""

    name = forms.CharField(max_length=64)
    kind = forms.ChoiceField(
        choices=[(_HTTP, "Address (HTTP)"), (_PROGRAM, "Program that the agent starts")], label="Connection"
    )
    target = forms.CharField(
        max_length=10_000, label="Address or command", help_text="https://tools.example/mcp, or npx -y some-server"
    )
    values = forms.CharField(
        required=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Headers or variables",
        help_text="One per line, as NAME=value. In place of a secret, write secret:VARIABLE or Bearer secret:VARIABLE: "
        "the value comes from the environment of the agent profile.",
    )

    def clean_values(self) -> dict[str, str]:
        """Return names and values. Raises ValidationError for a line without ``=``."""
        pairs = {}
        for line in filter(None, map(str.strip, self.cleaned_data["values"].splitlines())):
            name, equals, value = line.partition("=")
            if not equals:
                raise forms.ValidationError("Write each as NAME=value, one per line.")
            pairs[name.strip()] = value.strip()
        return pairs

    def server(self) -> dict[str, Any]:
        """Return the server of a valid form. Raises ValueError for a command with an open quote."""
        name, target, values = (self.cleaned_data[field] for field in ("name", "target", "values"))
        if self.cleaned_data["kind"] == _HTTP:
            return {"name": name, "type": "http", "url": target, "headers": values}
        command, *args = shlex.split(target)
        return {"name": name, "command": command, "args": args, "env": values}
