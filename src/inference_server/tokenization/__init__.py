"""Text in and out: tokenizers, chat templates, incremental detokenising, stop strings."""
