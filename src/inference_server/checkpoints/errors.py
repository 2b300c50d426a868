"""The one error a checkpoint can raise; its message is a single line fit for a log or a terminal."""


class CheckpointError(Exception):
    """A model is missing, gated, truncated, corrupt, or of a kind that is not supported."""
