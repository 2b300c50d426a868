"""What can go wrong between text and token ids."""

from inference_server.core.errors import ModelLoadError


class TokenizerError(ModelLoadError):
    """The model's tokenizer files are missing or unreadable."""


class ChatTemplateError(Exception):
    """The template cannot be read, or refuses the conversation; the message is fit for the client."""
