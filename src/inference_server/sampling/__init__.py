"""Logits to tokens: the set of tokens a request allows, and the draw among them. Knows nothing of requests, steps or devices' queues."""
