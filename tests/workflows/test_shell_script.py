"""Values in shell scripts are never executed, whatever they contain and wherever they stand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sessions_app.workflows.language import limits
from sessions_app.workflows.language.shell_script import ShellScriptError, find_script_problems, prepare_script
from sessions_app.workflows.language.values import MISSING
from tests.workflows.memory_runs import shell

SCRIPTS = {
    "bare": "echo {{ inputs.x }}",
    "assigned": "V={{ inputs.x }}\nprintf '%s\\n' \"$V\"",
    "in double quotes": 'echo "{{ inputs.x }}"',
    "in single quotes": "echo '{{ inputs.x }}'",
    "in a command": 'echo "$(printf %s {{ inputs.x }})"',
    "in quotes in a command in quotes": 'echo "$(printf %s "{{ inputs.x }}")"',
    "in a here-document": "cat <<EOF\n{{ inputs.x }}\nEOF",
    "in an indented here-document": "cat <<-EOF\n\t{{ inputs.x }}\n\tEOF",
    "as a default": "echo ${NOTHING:-{{ inputs.x }}}",
    "as a quoted default": 'echo "${NOTHING:-{{ inputs.x }}}"',
    "after a comment with a quote": "# it's\necho {{ inputs.x }}",
    "in a subshell": "(echo {{ inputs.x }})",
    "after arithmetic": "N=$((1 + (2)))\necho {{ inputs.x }}",
    "in a case": 'case a in a) echo "{{ inputs.x }}";; esac',
    "after an escaped quote": 'echo "\\"" >/dev/null; echo {{ inputs.x }}',
}
VALUES = {
    "command": "$(touch hit)",
    "backquotes": "`touch hit`",
    "end of quotes": "'; touch hit; '",
    "end of double quotes": '"; touch hit; "',
    "and": "a && touch hit",
    "end of here-document": "EOF\ntouch hit",
    "variable": "${IFS}$HOME$(touch hit)",
    "brace": "}; touch hit; {",
    "template": "{{ inputs.other }}",
    "option": "--help; touch hit",
    "backslash": "\\$(touch hit)\\",
    "newline": "a\ntouch hit\n# b",
    "star": "* ?",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_values_are_never_executed(script: str, tmp_path: Path) -> None:
    for value in VALUES.values():
        text = prepare_script(script, lambda name, port, value=value: value)  # type: ignore[misc]
        assert value not in text.script
        completed = shell(text.script, text.environment, tmp_path)
        assert (completed["stderr"], completed["exitCode"]) == ("", 0)
        assert completed["stdout"].rstrip("\n").replace("\\\\", "\\") == value.rstrip("\n").replace("\\\\", "\\"), value
    assert list(tmp_path.iterdir()) == []


def text_of(script: str, value: Any = "v") -> str:
    return prepare_script(script, lambda name, port: value).script


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo `echo {{ inputs.x }}`", "backquotes"),
        ("cat <<'EOF'\n{{ inputs.x }}\nEOF", "here-document"),
        ('cat <<"EOF"\n{{ inputs.x }}\nEOF', "here-document"),
        ("cat <<\\EOF\n{{ inputs.x }}\nEOF", "here-document"),
    ],
)
def test_template_where_no_variable_is_safe_is_refused(script: str, message: str) -> None:
    assert [message in found for _, found in find_script_problems(script)] == [True]
    with pytest.raises(ShellScriptError, match=message):
        text_of(script)


def test_arithmetic_accepts_only_numbers() -> None:
    assert shell(*_both("echo $(( {{ inputs.x }} + 1 ))", "41"), Path("/"))["stdout"] == "42\n"
    with pytest.raises(ShellScriptError, match="not a number"):
        text_of("echo $(( {{ inputs.x }} + 1 ))", "a[$(touch hit)]")


def _both(script: str, value: Any) -> tuple[str, Any]:
    text = prepare_script(script, lambda name, port: value)
    return text.script, text.environment


@pytest.mark.parametrize(
    "script",
    ["echo {{ foo }}", "echo {{ a b.c }}", "# {{ inputs.x }}", "echo {{ }}", "echo \\{{ inputs.x }}"],
)
def test_other_text_and_comments_stay_unchanged(script: str) -> None:
    assert text_of(script) == script


def test_template_without_a_value_stays_unchanged() -> None:
    assert prepare_script("echo '{{ a.b }}'", lambda name, port: MISSING).script == "echo '{{ a.b }}'"


def test_dollar_before_a_template_is_literal(tmp_path: Path) -> None:
    for script in ("echo ${{ inputs.x }}", 'echo "${{ inputs.x }}"', "echo '${{ inputs.x }}'"):
        assert shell(*_both(script, "5"), tmp_path)["stdout"] == "$5\n"


def test_values_become_text_and_unsupported_ones_are_refused() -> None:
    values = {"a": 1, "b": None, "c": True, "d": {"x": [1, "é"]}, "e": 2.5}
    text = prepare_script(" ".join(f"{{{{ inputs.{name} }}}}" for name in values), lambda name, port: values[port])
    assert list(text.environment.values()) == ["1", "", "true", '{"x":[1,"é"]}', "2.5"]
    for value in ("a\0b", "x" * 200_000):
        with pytest.raises(ShellScriptError):
            text_of("echo {{ inputs.x }}", value)


TOKENS = [
    *(
        "{{ inputs.x }}",
        "{{ inputs.x }}",
        '"',
        "'",
        "$(",
        ")",
        "${A:-",
        "}",
        "$((",
        "))",
        "\\",
        "#",
        "\n",
        " ",
        ";",
        "$",
    ),
    *("<<E\n", "E\n", "<<-E\n", "<<'Q'\n", "Q\n", "`", "echo ", "(", "<<<", "case a in ", "a) ", ";; ", "esac\n"),
]
TRAPS = ["$(touch hit)", "`touch hit`", "'\"\nE\n)}\ntouch hit\n"]


def test_value_is_never_executed_inside_random_quoting(tmp_path: Path) -> None:
    chance = random.Random(7)
    ran = 0
    while ran < 150:
        script = "".join(chance.choice(TOKENS) for _ in range(chance.randint(2, 14)))
        try:
            text = prepare_script(
                script, lambda name, port: chance.choice(["$(touch hit)", "`touch hit`", "'\"\nE\n)}\ntouch hit\n"])
            )
        except ShellScriptError:
            continue
        if text.environment:
            ran += 1
            shell(text.script, text.environment, tmp_path)
            assert not (tmp_path / "hit").exists(), script


def test_total_size_of_values_is_limited() -> None:
    one = "echo {{ inputs.x }}\n"
    fits = limits.MAX_ENVIRONMENT // limits.MAX_ENVIRONMENT_VALUE
    value = "x" * limits.MAX_ENVIRONMENT_VALUE
    assert len(prepare_script(one * fits, lambda name, port: value).environment) == fits
    with pytest.raises(ShellScriptError, match="together longer than 1 MiB"):
        prepare_script(one * (fits + 1), lambda name, port: value)
