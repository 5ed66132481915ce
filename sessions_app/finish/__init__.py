"""What a session has changed is merged or pushed once, exactly as it was reviewed, or not at all.

A merge and a push are intents: a row says what is to be done before it is done, and from which commit to which. The
job *finish* carries an intent out, and looks first whether that has happened already. Merges are made in
``executors_app/repositories/branch_merge.py``, in a repository of Kandev's own.
"""
