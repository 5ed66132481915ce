"""The portable record: the files beside the database that hold each session."""
