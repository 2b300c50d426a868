"""The one error a checkpoint can raise; its message is a single line fit for a log or a terminal."""

from inference_server.core.errors import ModelLoadError


class CheckpointError(ModelLoadError):
    """A model is missing, gated, truncated, corrupt, or of a kind that is not supported."""
