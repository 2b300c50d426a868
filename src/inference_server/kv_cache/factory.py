"""From `CacheOptions` to a `CacheManager` with its pool, its prefix cache and that cache's eviction policy."""

import logging

from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import CacheOptions
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.eviction import H2O, LRU, EvictionPolicy, SinkLRU
from inference_server.kv_cache.prefix_cache import PrefixCache
from inference_server.kv_cache.prefix_names import PrefixNames

logger = logging.getLogger(__name__)


def create_cache(layout: KVLayout, options: CacheOptions) -> CacheManager:
    """Without a prefix cache where it is turned off or the layer groups cannot have one. Raises ValueError for an unknown policy."""
    pool = BlockPool(layout)
    if not options.enable_prefix_cache:
        return CacheManager(pool)
    if not PrefixCache.supports(layout.groups):
        logger.warning("no prefix cache for this model: it needs one group of full-attention layers and at most one with a window")
        return CacheManager(pool)
    names = None if options.journal is None else PrefixNames(options.journal, layout.block_size)
    return CacheManager(pool, PrefixCache(pool, _create_policy(options.eviction_policy), names))


def _create_policy(name: str) -> EvictionPolicy:
    match name:
        case "lru":
            return LRU()
        case "sink_lru":
            return SinkLRU()
        case "h2o":
            return H2O()
        case _:
            raise ValueError(f"there is no eviction policy {name!r}")
