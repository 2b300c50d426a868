"""The exception tree. Every failure a client can see is an `InferenceServerError`; the API maps the class to an HTTP status.

No class here knows about HTTP. `param` names the offending request field, `code` is the stable machine-readable reason.
"""


class InferenceServerError(Exception):
    """Base of all errors that may end a request."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequestError(InferenceServerError):
    """The request can never succeed as sent."""

    code = "invalid_value"


class UnsupportedParameterError(InvalidRequestError):
    """A parameter that would change the output and is not implemented."""

    code = "unsupported_parameter"


class PromptTooLongError(InvalidRequestError):
    """The prompt leaves no room for a single generated token in the context or in the KV pool."""

    code = "context_length_exceeded"


class ModelNotFoundError(InferenceServerError):
    """The request names a model this server does not serve."""

    code = "model_not_found"


class TryLaterError(InferenceServerError):
    """Base of refusals that have nothing to do with the request itself. `retry_after_s` is a hint in seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OverloadedError(TryLaterError):
    """The queue is full, or the request waited longer than its admission deadline."""

    code = "overloaded"


class NotReadyError(TryLaterError):
    """The model is still loading, or the server is draining."""

    code = "not_ready"


class DeadlineExceededError(InferenceServerError):
    """The request ran out of time before any text went out."""

    code = "deadline_exceeded"


class RequestAbortedError(InferenceServerError):
    """The request was cancelled, by its client or by shutdown."""

    code = "aborted"


class StepFailedError(InferenceServerError):
    """A forward pass failed on the host side or ran out of memory; only the requests of that step are lost."""

    code = "step_failed"


class EngineDeadError(InferenceServerError):
    """The engine thread has ended, or the device is lost; nothing can be generated any more."""

    code = "engine_dead"


class ModelLoadError(Exception):
    """The model cannot be loaded. The message is one clear line for the operator, whatever a library's error put into it."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
