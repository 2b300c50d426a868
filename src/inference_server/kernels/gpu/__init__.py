"""`TritonOps` and its kernels, one file an operation, with the launches that were measured; and what sampling does on the device."""
