"""`RoutingKey`: what a router needs to know of a request, and nothing of its text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoutingKey:
    """names: of the prompt's whole chunks, as `ChunkHasher.chain` gives them. num_tokens: of the prompt, 0 where there is none."""

    names: tuple[int, ...] = ()
    num_tokens: int = 0
    chunk_tokens: int = 1

    def cached_share(self, depth: int) -> float:
        """The share of the prompt that its first `depth` chunks are."""
        return depth * self.chunk_tokens / self.num_tokens
