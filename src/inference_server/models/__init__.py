"""Hand-written forwards, one file a family (Gemma 4's config apart), reading top to bottom, on weights taken by name from a checkpoint."""
