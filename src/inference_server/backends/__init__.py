"""`InferenceBackend` and its implementations. Importing the package or `backends.base` loads no torch."""
