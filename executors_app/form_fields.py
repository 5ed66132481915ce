"""Form fields for lists and objects of settings: people write lines and words, and the model gets JSON values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django import forms

from executors_app.models import ENV_NAME

LINE_LIMIT: Final = 4_000
"""Characters of a command."""
TEXT_LIMIT: Final = 20_000
"""Characters of a text with several lines."""


def several_lines(rows: int = 2) -> forms.Textarea:
    """Return a field for text that is not prose."""
    return forms.Textarea(attrs={"rows": rows, "spellcheck": "false"})


class SecretInput(forms.PasswordInput):
    """A field whose value is not sent back, not even with its errors."""

    def __init__(self) -> None:
        super().__init__(attrs={"autocomplete": "off"}, render_value=False)


class SecretLines(forms.Textarea):
    """Lines whose text is not sent back, not even with their errors."""

    def __init__(self, rows: int = 3) -> None:
        super().__init__(attrs={"rows": rows, "spellcheck": "false", "autocomplete": "off"})

    def format_value(self, value: Any) -> None:
        """Show nothing."""
        return


class _TextOfValue(forms.CharField):
    """A text that stands for a JSON value: subclasses turn one into the other."""

    def text_of(self, value: Any) -> str:
        """Return how people write a value."""
        raise NotImplementedError

    def value_of(self, text: str) -> Any:
        """Return what a text stands for. Raises ValidationError."""
        raise NotImplementedError

    def prepare_value(self, value: Any) -> Any:
        """Return the text of a stored value; what was entered stays as it is."""
        if value is None or isinstance(value, str):
            return value
        return self.text_of(value)

    def clean(self, value: Any) -> Any:
        """Return the value of the text, whose length is limited. Raises ValidationError."""
        return self.value_of(super().clean(value))

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the text stands for another value than the initial one."""
        try:
            return bool(self.clean(data) != self.clean(self.prepare_value(initial) or ""))
        except forms.ValidationError:
            return True


class WordsField(_TextOfValue):
    """A program and its arguments, or arguments, as a shell splits them."""

    def __init__(self, **options: Any):
        super().__init__(max_length=LINE_LIMIT, required=False, **options)

    def text_of(self, value: Sequence[Any]) -> str:
        """Return the words, quoted where that is necessary."""
        return shlex.join(map(str, value))

    def value_of(self, text: str) -> list[str]:
        """Return the words. Raises ValidationError for an open quote."""
        try:
            return shlex.split(text)
        except ValueError as error:
            raise forms.ValidationError("A quote is not closed.") from error


class LinesField(_TextOfValue):
    """A list with one text per line."""

    def __init__(self, **options: Any):
        super().__init__(max_length=TEXT_LIMIT, required=False, widget=several_lines(), **options)

    def text_of(self, value: Sequence[Any]) -> str:
        """Return a line for each."""
        return "\n".join(map(str, value))

    def value_of(self, text: str) -> list[str]:
        """Return the lines that are not empty."""
        return _stripped(text)


class HostsField(_TextOfValue):
    """Hosts by the name of a variable, one variable per line."""

    def __init__(self, **options: Any):
        super().__init__(max_length=TEXT_LIMIT, required=False, widget=several_lines(), **options)

    def text_of(self, value: Mapping[str, Sequence[str]]) -> str:
        """Return a line for each variable."""
        return "\n".join(f"{name}: {', '.join(hosts)}" for name, hosts in value.items())

    def value_of(self, text: str) -> dict[str, list[str]]:
        """Return the hosts of each variable. Raises ValidationError for a line without a colon."""
        found: dict[str, list[str]] = {}
        for line in _stripped(text):
            name, colon, hosts = line.partition(":")
            if not colon:
                raise forms.ValidationError("Write each as VARIABLE: host, host.")
            found[name.strip()] = [host.strip() for host in hosts.split(",") if host.strip()]
        return found


class VariablesField(_TextOfValue):
    """Variables of an environment, one per line as ``NAME=value``; their text is never sent back."""

    def __init__(self, **options: Any):
        super().__init__(max_length=TEXT_LIMIT, required=False, widget=SecretLines(), **options)

    def text_of(self, value: Any) -> str:
        """Return nothing: values are secret."""
        return ""

    def value_of(self, text: str) -> dict[str, str]:
        """Return the values by name. Raises ValidationError, which repeats none of them."""
        found: dict[str, str] = {}
        for line in _stripped(text):
            name, equals, value = line.partition("=")
            if not equals or not ENV_NAME.fullmatch(name.strip()):
                raise forms.ValidationError("Write each as NAME=value, one per line.")
            found[name.strip()] = value.strip()
        return found


class PairsField(_TextOfValue):
    """Places here and elsewhere, one pair per line as ``here = there``."""

    def text_of(self, value: Any) -> str:
        """Return a line for each pair; something else, as it is stored."""
        if not isinstance(value, Mapping):
            return str(value)
        return "\n".join(f"{here} = {there}" for here, there in value.items())

    def value_of(self, text: str) -> dict[str, str]:
        """Return the pairs. Raises ValidationError for a line without an equals sign."""
        pairs = {}
        for line in _stripped(text):
            here, equals, there = line.partition("=")
            if not equals or not here.strip() or not there.strip():
                raise forms.ValidationError("Write each as path here = path or address there, one per line.")
            pairs[here.strip()] = there.strip()
        return pairs


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
