"""What the tests of small-batch linear layers share: epilogues, and launches with small tiles."""

import torch

from inference_server.kernels.gpu.launch import LaunchConfig
from inference_server.kernels.ops import PLAIN, Activation, Epilogue

BF16, FP32 = torch.bfloat16, torch.float32
PARTIAL = Epilogue(partial=True)
EPILOGUES = [
    PLAIN,
    Epilogue(Activation.GELU_TANH, gated=True),
    Epilogue(Activation.SILU, gated=True),
    Epilogue(softcap=0.5, out_dtype=FP32),
]
CONFIG = LaunchConfig(rows=16, block_k=32, num_warps=4, num_stages=2)
IN_TURNS = LaunchConfig(rows=16, block_k=32, num_warps=4, num_stages=2, programs=2)
