"""Secrets are found in texts, and texts are made safe to show, in time that grows with their length alone (pure).

Text is searched where it leaves the product: quotations of the inbox, in mails and webhooks
(``attention/services/wording.py``) and the history for a new agent (``recovery/rules/history.py``). What
agentctl logs is searched on its machine (``executors_app/wire/token_redaction.py``).
"""
