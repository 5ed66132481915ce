"""What the worker does (django-q2): slow and regular work that needs no lease; each task may be done again."""
