"""Weights on disk: GGUF and safetensors readers, and the one-time conversion of a GGUF file to a Hugging Face folder."""
