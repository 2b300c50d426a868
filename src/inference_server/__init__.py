"""A single-process LLM inference server: continuous batching over a paged KV cache, streamed over HTTP."""

__version__ = "0.1.0"
