"""Hand-written forwards: one file a family, reading top to bottom, on weights taken by name from a checkpoint."""
