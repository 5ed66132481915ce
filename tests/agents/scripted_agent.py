"""An agent that answers from a script: ``scripted_agent.py SCRIPT``, a JSON file.

The script gives the actions for the first, second, ... call of each method; the last one is repeated. An
action is a list of lines to print, in which ``$ID`` is the request's id. A number ends the agent with that
exit code, and ``$CLOSE`` closes its output. The agent appends everything that it reads to ``SCRIPT.read``, and
writes ``SCRIPT.saved`` only at the end of its input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    script = json.loads(Path(sys.argv[1]).read_text())
    with Path(f"{sys.argv[1]}.read").open("ab", buffering=0) as read:
        for line in sys.stdin.buffer:
            read.write(line)
            message = json.loads(line)
            calls = script.get(message.get("method", "answer"), [])
            actions = calls[0] if calls else []
            if len(calls) > 1:
                del calls[0]
            for action in actions:
                if isinstance(action, int):
                    sys.exit(action)
                if action == "$CLOSE":
                    os.close(1)
                    continue
                sys.stdout.write(action.replace("$ID", json.dumps(message.get("id"))) + "\n")
                sys.stdout.flush()
    Path(f"{sys.argv[1]}.saved").touch()


if __name__ == "__main__":
    main()
