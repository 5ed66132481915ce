"""What needs a person is shown until it is settled, and no longer.

The event that makes something need a person says so in its declaration (``raises``, ``update_inbox``); what follows
from a session's own state is in ``raising.py``.
"""
