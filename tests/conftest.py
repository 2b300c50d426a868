"""Settings that every test shares.

Tiny models gain nothing from a second thread, and become thirty times slower when torch's threads wait for each other on a busy
machine: one thread, in the servers that tests start too. An explicit OMP_NUM_THREADS wins.

Without a GPU, Triton kernels run in Triton's interpreter; it is chosen when a kernel is defined, so before any is imported.
"""

import gc
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest_plugins = ["turns", "fleets"]

gc.disable()  # until all is imported: what imports make is no garbage, and walking it over and over is a quarter of their time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-seconds", type=float, help="how long each chaos test storms; its usual time by default")
    parser.addoption("--chaos-seed", help="what a chaos test's choices come from; a random one by default")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
