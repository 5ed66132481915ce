"""An answer goes to the action that was shown, once; nobody answers what has changed meanwhile.

A permission is answered with the key of its wait, so ``waits/services.py`` takes the answer
(``answer_permission``) and refuses a key whose action has changed; ``open_requests.py`` replaces the key when that
happens.
"""
