"""The small tokenizers, built once a session."""

from pathlib import Path

import pytest
from small_tokenizers import byte_fallback_folder, byte_level_folder

from inference_server.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def fallback_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_fallback_folder(tmp_path_factory.mktemp("byte_fallback"))


@pytest.fixture(scope="session")
def level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level_folder(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def fallback(fallback_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(fallback_folder)


@pytest.fixture(scope="session")
def level(level_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(level_folder)
