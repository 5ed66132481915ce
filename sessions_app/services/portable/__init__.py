"""The portable record: each session as files beside the database ."""
