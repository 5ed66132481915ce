"""What follows from every change to a session, in one place and in a fixed order.

All hooks run inside the session's database transaction: either the change commits with everything that follows from
it, or nothing does. When the block of ``session_transaction`` ends, the order is:

1. **derived status**: records ``session.status_derived`` if the changes altered the status.
2. **attention**: reads the recorded events and the final states, and raises and resolves items. Each item records an
   event of its own. Mail and webhooks follow from the committed items; the worker sends them.
3. The session's row and its task's state are written.
4. **audit fields**: cause and owner go into the payloads. Last before the log, so that the events of 1 and 2 get them.
5. The events are appended and get their ``seq``; the **wake-up** of other processes is scheduled for the commit.
6. **audit log**: our own log lines name ``seq``, and are written after the commit, so they never report what was
   rolled back.
7. The steps in ``after_events``, which need ``seq`` too.
"""

from __future__ import annotations

from typing import Final

from sessions_app.models.attention_rules import update_attention
from sessions_app.models.audit import add_audit_fields, write_audit_log
from sessions_app.models.derived_status import record_status_change
from sessions_app.models.transactions import SideEffects
from sessions_app.models.waits import end_run_of_lost_prompt, revoke_tokens_of_run

SIDE_EFFECTS: Final = SideEffects(
    prompt_moved=(end_run_of_lost_prompt,),
    run_ended=(revoke_tokens_of_run,),
    before_write=(record_status_change, update_attention),
    before_append=(add_audit_fields,),
    after_append=(write_audit_log,),
)
