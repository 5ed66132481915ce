"""Command lines are shown without secrets."""

from __future__ import annotations

import pytest

from executors_app.wire.command_redaction import READ_LENGTH, redact_command, secret_values

VALUES = ("hunter2-hunter2",)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("npm run dev", "npm run dev"),
        ("grep key notes.txt", "grep key notes.txt"),
        ("deploy --api-key abc --fast", "deploy --api-key [redacted] --fast"),
        ("deploy --token=abc --fast", "deploy --token=[redacted] --fast"),
        ("env API_KEY=abc make", "env API_KEY=[redacted] make"),
        ("curl -H Authorization: Bearer abc http://x", "curl -H Authorization: Bearer [redacted] http://x"),
        ("curl -H X-Api-Key: abc", "curl -H X-Api-Key: [redacted]"),
        ("psql postgres://ada:abc@host/db", "psql postgres://ada:[redacted]@host/db"),
        ("tool sk-ant-0123456789abcdef", "tool [redacted]"),
        ("sh -c PASSWORD='three long words' make", "sh -c PASSWORD=[redacted] make"),
        ('deploy --password "three long words" --fast', "deploy --password [redacted] --fast"),
        ("sh -c TOKEN='never ends", "sh -c TOKEN=[redacted]"),
        ('curl -d {"api_key": "abc", "on": 1}', 'curl -d {"api_key": [redacted], "on": 1}'),
        ("curl -s -u ada:abc http://x", "curl -s -u ada:[redacted] http://x"),
        ("curl --user=ada:abc http://x", "curl --user=ada:[redacted] http://x"),
        ("docker run -u 1000:1000 image", "docker run -u 1000:1000 image"),
        ("env MYSQL_PWD=abc mysql", "env MYSQL_PWD=[redacted] mysql"),
        ("env PWD=/srv make", "env PWD=/srv make"),
        ("git clone https://ghs_0123456789abcdef@host/x", "git clone https://[redacted]@host/x"),
        ("tool hunter2-hunter2 go", "tool [redacted] go"),
        (f"{'x ' * 99}hunter2-hunter2", f"{'x ' * 99}[r"),
        ("y" * READ_LENGTH, "y" * 200),
    ],
)
def test_secrets_are_not_shown(command: str, shown: str) -> None:
    assert redact_command(command, VALUES) == shown


def test_half_of_a_secret_at_the_end_of_what_is_read_is_not_shown() -> None:
    command = f"{'hunter2-hunter2' * 50} {'hunter2-hunter2' * 9}"
    assert "hunter" not in redact_command(command[:READ_LENGTH], VALUES)


def test_secrets_of_an_environment_are_known_by_their_names() -> None:
    environment = {"API_KEY": "hunter2-hunter2", "HOME": "/home/agent-1", "SHORT_TOKEN": "abc"}
    assert secret_values(environment) == {"hunter2-hunter2"}
