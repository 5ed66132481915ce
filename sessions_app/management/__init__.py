"""The commands of ``manage.py``: each checks its start, and prints nothing that controls a terminal."""
