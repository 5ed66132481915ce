"""While a usage limit lasts, nothing is sent to the agent; at its end, work goes on once, as its policy says.

An agent reports a limit as the end of a turn. The session is then *suspended*: page and inbox say until when and why,
prompts stay in the queue, and the agent may sleep. When the limit ends, the queue goes on, and the turn that the limit
has ended is continued once if the policy allows it; otherwise a person decides.
"""
