"""The files of a prompt travel with it to the agent, into the conversation, and with every resend."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import Attachment, Prompt, TaskSession, session_transaction
from sessions_app.prompts.delivery import PromptDelivery, claim_next_prompt
from sessions_app.prompts.rules.attachments import AttachedFile
from sessions_app.prompts.services import store_files
from sessions_app.recovery.services.history import current_history
from sessions_app.stream.views import attached_files
from tests.supervisor.histories import prepare_history
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, prompt_states, running_session

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

FILE = AttachedFile("notes.txt", "text/plain", b"pelican")
BLOCK = {
    "type": "resource",
    "resource": {"uri": "attachment:///notes.txt", "mimeType": "text/plain", "text": "pelican"},
}


def session_with_file(**values: Any) -> TaskSession:
    """Return a running session whose one prompt ``p1`` has a file."""
    session = running_session()
    with session_transaction(session.id) as transaction:
        described = store_files(transaction.session, [FILE])
    values = {"message_id": "p1", "text": "read it", "attachments": described, **values}
    Prompt.objects.create(session=session, **values)
    return session


def claim(session: TaskSession, epoch: str = "epoch-1") -> PromptDelivery | None:
    return claim_next_prompt(session.id, MINE, epoch, frozenset())


def test_prompt_is_sent_and_resent_with_its_files() -> None:
    session = session_with_file()
    for _ in range(2):
        sending = claim(session)
        assert sending is not None
        assert (sending.text, sending.blocks) == ("read it", [BLOCK])


def test_accepted_files_enter_the_conversation_and_the_history() -> None:
    session = session_with_file(state="sending", journal_epoch="epoch-1")
    ingest(session, Journal("epoch-1").turn_begins("p1", "read it"))
    (message,) = session.messages.all()
    described = Prompt.objects.get().attachments
    assert message.payload == {"kind": "user", "attachments": described}
    assert attached_files(session, described)[0]["url"].endswith(f"/attachments/{described[0]['sha256']}/")
    prepare_history(session)
    history = current_history(session)
    assert history is not None
    assert history.text == "[USER]: [Attached: notes.txt (text/plain)] read it"


def test_prompt_with_a_lost_file_is_held() -> None:
    session = session_with_file()
    Attachment.objects.all().delete()
    assert claim(session) is None
    assert prompt_states(session) == {"p1": "held"}


@pytest.mark.parametrize(("is_new", "blocks"), [(True, [BLOCK]), (False, [])], ids=["a new agent", "the same agent"])
def test_only_a_new_agent_that_continues_gets_the_files_again(is_new: bool, blocks: list[Any]) -> None:
    session = session_with_file(state="dismissed")
    row = Prompt.objects.create(session=session, message_id="continue:1", text="go on", kind="continue")
    Prompt.objects.filter(message_id="p1").update(continued_by=row)
    TaskSession.objects.filter(id=session.id).update(inject_history=is_new)
    sending = claim(session)
    assert sending is not None
    assert sending.blocks == blocks


@pytest.mark.parametrize("sha256", ["../../x", "0" * 63, 7, None])
def test_imported_description_without_a_digest_gets_no_address(sha256: Any) -> None:
    (file,) = attached_files(running_session(), ["damage", {"name": "a\u202eb", "sha256": sha256, "size": "x"}])
    assert (file["url"], file["size"], file["is_image"]) == ("", None, False)
