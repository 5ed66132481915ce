"""The pages: each view reads or asks through a service and renders; none decides anything."""
