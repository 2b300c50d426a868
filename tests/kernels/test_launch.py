"""The launch table's lookup, and that the table in the repository is well formed."""

import json

import pytest
import torch

from inference_server.kernels.gpu import launch
from inference_server.kernels.gpu.launch import TABLE_PATH, LaunchConfig, tuning

DEFAULT = LaunchConfig(1, 64, 1)
CUDA = torch.device("cuda")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_read_table", lambda: {"card": {"op 24x32": [16, 32, 4, 2, 1], "op 8x32": None}})
    monkeypatch.setattr(launch, "_card", lambda device: "card")


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("n, expected", [(24, LaunchConfig(16, 32, 4, 2, 1)), (8, None), (9, DEFAULT)])
def test_lookup(n: int, expected: LaunchConfig | None) -> None:
    assert tuning("op", n, 32, CUDA, DEFAULT) == expected


def test_an_unknown_card_was_not_measured(table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_card", lambda device: "another")
    assert tuning("op", 24, 32, CUDA, DEFAULT) is DEFAULT


def test_a_cpu_has_no_table_and_no_overlap() -> None:
    assert tuning("op", 24, 32, torch.device("cpu"), DEFAULT) is DEFAULT
    assert not launch.overlaps_launches(torch.device("cpu"))


def test_the_table_in_the_repository() -> None:
    for card in json.loads(TABLE_PATH.read_text(encoding="utf-8")).values():
        for key, fields in card.items():
            n, k = key.rsplit(" ", 1)[1].split("x")
            assert int(n) > 0 and int(k) > 0
            assert fields is None or (LaunchConfig(*fields).programs >= 0 and all(value > 0 for value in fields[:5]))
