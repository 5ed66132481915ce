"""An ACP agent that only talks, run as ``python -I -S talker.py``; it costs little, so that Kandev's own cost shows.

``work SECONDS at RATE`` sends that many numbered ticks a second; it answers any other prompt with nothing.
"""

import json
import sys
import time

ANSWERS = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}},
    "session/new": {"sessionId": "one"},
    "session/prompt": {"stopReason": "end_turn"},
}
TICK = (
    '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"one","update":'
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"tick %d\\n"}}}}\n'
)


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        if request["method"] == "session/prompt":
            talk(request["params"]["prompt"][0]["text"].split())
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": ANSWERS.get(request["method"], {})}
        print(json.dumps(answer), flush=True)


def talk(words: list[str]) -> None:
    """Carry out ``work SECONDS at RATE``."""
    if len(words) != 4 or words[0] != "work":
        return
    seconds, rate, began = float(words[1]), float(words[3]), time.monotonic()
    for number in range(1, round(seconds * rate) + 1):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        sys.stdout.write(TICK % number)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
