"""Settings that every test shares.

Tests use one thread, and so do the servers that they start: tiny models gain nothing from a second one, and become thirty times slower
when torch's threads wait for each other on a busy machine. An explicit OMP_NUM_THREADS wins.

Without a GPU, Triton kernels run in Triton's interpreter. That is decided when a kernel is defined, so it is set before any import.
"""

import gc
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest_plugins = ["turns", "fleets"]

gc.disable()  # until all is imported: imports make no garbage, and walking their objects again and again takes a quarter of their time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-seconds", type=float, help="how long each chaos test storms; its usual time by default")
    parser.addoption("--chaos-seed", help="what a chaos test's choices come from; a random one by default")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
