"""Without a GPU, Triton kernels run in its interpreter; it must be asked for before a kernel is defined."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
