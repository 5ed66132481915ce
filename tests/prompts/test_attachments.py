"""The types of files that prompts carry, and the content blocks that they become."""

from __future__ import annotations

import base64

import pytest

from sessions_app.prompts.rules.attachments import (
    clean_name,
    content_block,
    first_untaken,
    media_type_of,
    names_sentence,
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a\x01\0", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav"),
        (b"ID3\x04\0", "audio/mpeg"),
        (b"OggS\0", "audio/ogg"),
        (b"fLaC\0", "audio/flac"),
        (b"%PDF-1.7", "application/pdf"),
        ("grüße".encode(), "text/plain"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text/plain"),
        (b"RIFF\x10\0\0\0AVI LIST", None),
        (b"a\0b", None),
        (b"\x7fELF\x02\0", None),
        (b"\xff\xfe\xfd", None),
        (b"12345678WEBP", "text/plain"),
    ],
)
def test_content_decides_the_type(content: bytes, expected: str | None) -> None:
    assert media_type_of(content) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.png", "a.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\a.txt", "a.txt"),
        ("a\u202egnp.exe\n", "a_gnp.exe_"),
        ("/", "file"),
    ],
)
def test_name_has_no_path_and_nothing_invisible(name: str, expected: str) -> None:
    assert clean_name(name) == expected


def test_files_become_content_blocks() -> None:
    image, text, pdf = (
        {"name": f"a b.{end}", "media_type": media_type}
        for end, media_type in (("png", "image/png"), ("txt", "text/plain"), ("pdf", "application/pdf"))
    )
    assert content_block(image, b"x") == {
        "type": "image",
        "mimeType": "image/png",
        "data": base64.b64encode(b"x").decode(),
    }
    assert content_block(text, b"x") == {
        "type": "resource",
        "resource": {"uri": "attachment:///a%20b.txt", "mimeType": "text/plain", "text": "x"},
    }
    assert content_block(pdf, b"x")["resource"]["blob"] == base64.b64encode(b"x").decode()
    assert first_untaken([text, image], ["resource"]) is image
    assert first_untaken([text], []) is None
    assert names_sentence([image, "damage"]) == "[Attached: a b.png (image/png)]"
