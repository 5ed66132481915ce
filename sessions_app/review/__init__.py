"""A branch is shown whole against its base, committed and not, and each change as what it is.

git runs where the workspace is: ``executors_app/agentctl/workspace/branch_review.py`` compares, confined and with
limits, and ``executors_app/repositories/saved_branch.py`` does the same for saved work. Both share
``executors_app/machine/git/branch_changes.py``, which parses git's answers, and ``tree_changes.py`` beside it, which
reads them. A turn is shown as what differs between the snapshots before and after it, as long as they are stored:
``executors_app/agentctl/workspace/kept_turns.py`` keeps those of the last hundred turns in the workspace's repository.
``selected_commit.py`` beside it commits selected files.
"""
