"""From a model's name to a folder on disk: the embedded model, a folder, a GGUF file, or a Hugging Face hub id."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf_convert import convert_gguf

EMBEDDED = "embedded"
_FILES = ["*.json", "*.safetensors", "*.jinja"]


def resolve_model(name: str, revision: str | None, cache_dir: Path) -> Path:
    """The folder that holds the model, prepared or downloaded if need be.

    `cache_dir` takes conversions; hub downloads go to the hub's own cache, where other programs find them too.
    Raises `CheckpointError` with one line for a model that is missing, gated, unreachable or unreadable.
    """
    if name == EMBEDDED:
        return prepare_embedded(cache_dir)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return convert_gguf(path, cache_dir)
    if path.is_dir():
        return path
    return _download(name, revision)


def _download(name: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except GatedRepoError as error:
        raise CheckpointError(f"{name}: access is gated; accept its terms on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{name}: the hub has no revision {revision!r} of it") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{name}: no such folder here and no such model on the hub (a private one needs HF_TOKEN)") from error
    except HFValidationError as error:
        raise CheckpointError(f"{name}: no such folder, and not a hub id either") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(f"{name}: not in the local cache, and the hub cannot be reached") from error
