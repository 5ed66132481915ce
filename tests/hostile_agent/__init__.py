"""An agent tampers with everything it can write in its container; the control plane must then handle it safely."""
