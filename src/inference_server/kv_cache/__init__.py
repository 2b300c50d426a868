"""Who holds which KV block: the pool of slabs and blocks, and the block tables of requests. Moves no data and knows no tensors."""
