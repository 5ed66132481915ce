"""An answer goes to the action that was shown, once; nobody answers what has changed meanwhile.

A permission is answered with the key of its wait (``answer_permission``). A key whose action has changed is refused;
``open_requests.py`` replaces it when that happens.
"""
