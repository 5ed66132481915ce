"""Each prompt reaches its agent at most once and in order; if its delivery is in doubt, its user decides.

A prompt is stored by ``services.py`` (``queue_prompt``), claimed and sent by ``delivery.py``, and
accepted by ``executors_app/agentctl/turns.py``, which writes it into the journal before the agent gets it.
"""
