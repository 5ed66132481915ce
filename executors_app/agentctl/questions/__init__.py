"""Questions of agents (elicitations): the form or link that an agent asks for, and the answers that fit it.

agentctl checks a question before it asks anybody, and the control plane and agentctl both check the answer. Forms are
the restricted JSON Schema of ACP 1.7 and MCP: a flat object of texts, numbers, choices and switches. What the agent
writes is hostile, so sizes and counts are limited. Patterns are not matched here, because a hostile one may take for
ever: the control plane matches them in a process with limits (``sessions_app.services.questions``).
"""

from typing import Final

ACCEPT: Final = "accept"
DECLINE: Final = "decline"
CANCEL: Final = "cancel"
"""The actions of ACP, which are also the ``option_id`` of an answer."""
FORM: Final = "form"
URL: Final = "url"
"""The modes of ACP."""
