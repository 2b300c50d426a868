"""The operations a forward is made of: one file an operation, and the pure PyTorch reference of all of them."""
