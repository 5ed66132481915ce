"""A session starts on a host that belongs to its executor and has its repository; if there is none, its page says so.

Only local executors and those whose agents get the repository from this machine depend on a host. Where a supervisor
is the only one, nothing is asked, and every start is its own. Kandev places nothing else: clusters place by their own
scheduler.
"""
