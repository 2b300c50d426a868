"""Readers of the engine's records: the sliding-window tracker, the Prometheus exposition; and the form of the logs."""
