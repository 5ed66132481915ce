"""No text of agents or members costs more than its budget: it is read in limited processes.

A text decides how expensive it is to parse, highlight or compare. Code that does that is an *operation*: a function of
an operations module, which runs in a child of a fork server, with limits on processor time, memory and elapsed time,
and with no right to open a file or start a process. Nothing in this package imports Django.

To add an operation, write a function that takes a ``ClientLink`` and keyword arguments of JSON, returns a JSON object,
and add it to ``OPERATIONS`` of an operations module (``OPERATIONS``, and ``preload()``, which imports and builds all
that a child needs). Then call it through that module's pool:

    answer = TEXT_POOL.run("markdown", {"text": text}, owner=f"team:{team_id}", limits=LIMITS)
    answer = await TEXT_POOL.run_async("markdown", {"text": text}, owner=f"team:{team_id}", limits=LIMITS)
    outcomes = TEXT_POOL.run_batch("markdown", [{"text": text} for text in texts], owner=..., limits=LIMITS)

``run`` raises ``TooExpensive`` (the text’s own fault: it will fail again), ``PoolUnavailable`` (a busy machine, too
many requests of the same owner, a process that died: it may succeed later) or ``OperationFailed`` (a bug).
``run_batch`` returns an outcome for each text instead, so that one text does not spoil the others, and raises only
``PoolUnavailable``. An owner has one running request at a time; others wait, for the elapsed time of its limits at
most.
"""
