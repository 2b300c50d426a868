"""A cache manager for tests that runs requests as a scheduler would."""

from collections.abc import Sequence

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.eviction import LRU, EvictionPolicy
from inference_server.kv_cache.prefix_cache import PrefixCache
from inference_server.kv_cache.prefix_names import PrefixNames

BLOCK = 4
FULL_ONLY = (LayerGroup((0,), 1, 1, 1),)
WINDOW_8 = (LayerGroup((0, 1), 1, 1, 1), LayerGroup((2, 3, 4), 1, 1, 1, window=8))


class Cache(CacheManager):
    """Computes one block a step, and checks the books after each step."""

    def __init__(
        self,
        groups: tuple[LayerGroup, ...] = FULL_ONLY,
        num_slabs: int = 101,
        policy: EvictionPolicy | None = None,
        names: PrefixNames | None = None,
    ) -> None:
        self.pool = BlockPool(KVLayout(groups, BLOCK, num_slabs))
        self.prefix = PrefixCache(self.pool, policy or LRU(), names)
        super().__init__(self.pool, self.prefix)
        self.running: list[ScheduledRequest] = []
        self.num_started = 0

    def start(self, token_ids: Sequence[int], salt: str = "") -> ScheduledRequest:
        self.num_started += 1
        request = ScheduledRequest(f"r{self.num_started}", list(token_ids), SamplingParams(), arrival_time=0.0, cache_salt=salt)
        self.match_prefix(request)
        self.count_hits(request)
        self.running.append(request)
        self.check_integrity(self.running)
        return request

    def compute(self, request: ScheduledRequest, num_tokens: int | None = None) -> bool:
        """Compute and collect the first `num_tokens` tokens of the request. False if memory runs out before that."""
        end = len(request.token_ids) if num_tokens is None else num_tokens
        while request.num_computed_tokens < end:
            target = min(end, (request.num_computed_tokens // BLOCK + 1) * BLOCK)
            self.drop_out_of_window(request)
            if not self.extend(request, target):
                return False
            request.num_computed_tokens = request.num_collected_tokens = target
            self.commit(request)
            self.check_integrity(self.running)
        return True

    def end(self, request: ScheduledRequest) -> None:
        self.running.remove(request)
        self.free(request)
        self.check_integrity(self.running)

    def run(self, token_ids: Sequence[int], salt: str = "") -> int:
        """Run a request to its end. Returns how many of its tokens were cached."""
        request = self.start(token_ids, salt)
        assert self.compute(request)
        self.end(request)
        return request.num_cached_tokens

    def cached(self, token_ids: Sequence[int], salt: str = "") -> int:
        """How many cached tokens a request of these tokens would find. Changes nothing but the times of last use."""
        request = self.start(token_ids, salt)
        self.end(request)
        return request.num_cached_tokens


def prompt(start: int, num_tokens: int) -> list[int]:
    return list(range(start, start + num_tokens))
