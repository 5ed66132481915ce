"""A small agent that needs no key and no network. Nothing here imports anything else of ours."""
