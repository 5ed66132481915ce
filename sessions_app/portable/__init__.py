"""A record outside the database contains every session; importing it starts, sends and claims nothing.

The portable record: the files beside the database that hold each session.
"""
