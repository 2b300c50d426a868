"""What can go wrong between text and token ids."""


class TokenizerError(Exception):
    """The model's tokenizer files are missing or unreadable."""


class ChatTemplateError(Exception):
    """The template cannot be read, or refuses the conversation; the message is fit for the client."""
