"""From a model, a memory and the lengths of requests to settings of a server (docs/planning.md)."""
