"""An agent that owns its container tampers with all it can write; then the control plane acts on what it left."""
