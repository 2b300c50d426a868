"""The engine thread and its asyncio face: requests in, streams of deltas out. No torch, no web framework."""
