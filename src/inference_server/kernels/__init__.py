"""The operations a forward is made of (`Ops`), their definition in plain PyTorch, and the sets that are faster: `cpu/` and `gpu/`."""
