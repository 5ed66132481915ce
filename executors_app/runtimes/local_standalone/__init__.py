"""Sessions on the control plane's own machine."""
