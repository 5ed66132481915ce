"""One living supervisor writes for an execution, and its death is noticed."""
