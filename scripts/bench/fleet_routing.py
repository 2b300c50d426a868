"""What one routing decision costs, after tokenising and hashing, and how much memory the index takes.

The budget is 200 us at 100 replicas and a prompt of 4,000 tokens. A tenth of the replicas have the prompt cached, each up to a different
depth, which is the expensive case; the index is full. Times are processor time of one thread.
"""

import argparse
import random
import time
from statistics import median

from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import PrefixPolicy
from inference_server.core.chunk_hash import ChunkHasher

BUDGET_US = 200


def make_router(replicas: list[str], capacity: int, rng: random.Random) -> FleetRouter:
    """A router with a full index, in which every name has two holders."""
    router = FleetRouter(PrefixPolicy(seed=0), PrefixIndex(capacity))
    router.set_replicas(replicas)
    names = [rng.getrandbits(62) + 1 for _ in range(capacity)]
    share = -(-capacity // len(replicas))
    for index, replica in enumerate(replicas):
        router.index.add(replica, names[index * share : (index + 1) * share])
        router.index.add(replicas[index - 1], names[index * share : (index + 1) * share])
    return router


def cpu_us(work: object, number: int) -> float:
    assert callable(work)
    began = time.process_time()
    for _ in range(number):
        work()
    return 1e6 * (time.process_time() - began) / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a chunk, which has one name")
    parser.add_argument("--capacity", type=int, default=2**20, help="the most names in the index")
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    rng = random.Random(0)
    replicas = [f"replica-{index}" for index in range(args.replicas)]
    router = make_router(replicas, args.capacity, rng)
    hasher = ChunkHasher(b"salt", args.chunk)
    token_ids = [rng.randrange(262_144) for _ in range(args.tokens)]
    key = RoutingKey(tuple(hasher.chain(token_ids)), args.tokens, args.chunk)
    for replica in rng.sample(replicas, max(1, args.replicas // 10)):
        router.index.add(replica, key.names[: rng.randrange(1, len(key.names) + 1)])
        router.views[replica].sent_tokens = rng.randrange(10_000)
    decision = median(cpu_us(lambda: router.choose(key), 20) for _ in range(args.rounds))
    began = cpu_us(lambda: router.began(replicas[0], key), args.rounds)
    print(f"decision {decision:.0f} us, booking it {began:.0f} us, hashing {cpu_us(lambda: hasher.chain(token_ids), args.rounds):.0f} us")
    names, size = len(router.index), router.index.num_bytes()
    print(
        f"index: {names} names, {size / 2**20:.1f} MiB, {size / names:.0f} bytes a name, {size / args.replicas / 2**10:.0f} KiB a replica"
    )
    if decision > BUDGET_US:
        raise SystemExit(f"above the budget of {BUDGET_US} us")


if __name__ == "__main__":
    main()
