"""How much of their prompts conversations find cached by a server or a fleet at --url, beside the most that one box could have cached.

Conversations take turns, so a fleet that does not keep each of them on one replica computes most of their prompts again.
"""

import argparse
import asyncio
from dataclasses import dataclass
from uuid import uuid4

import httpx

ANSWER_TOKENS = 16


@dataclass(slots=True)
class Cached:
    """Tokens. prompts: of all prompts. hits: those of them that were cached. possible: the most that one box could have cached, which is
    all whole blocks of each conversation so far.
    """

    prompts: int = 0
    hits: int = 0
    possible: int = 0

    def __str__(self) -> str:
        share, most = self.hits / self.prompts, self.possible / self.prompts
        return f"{share:.1%} of {self.prompts} prompt tokens were cached; in one box at most {most:.1%}"


async def converse(http: httpx.AsyncClient, prefix: str = "", sessions: int = 8, turns: int = 5, block_size: int = 16) -> Cached:
    """Hold the conversations. prefix: of the routes. Two calls share no prompts."""
    cached, salt = Cached(), uuid4().hex
    told = [f"{index:04}" + "hello " * 40 for index in range(sessions)]
    computed = [0] * sessions
    for _ in range(turns):
        for index in range(sessions):
            body = {"prompt": told[index], "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "cache_salt": salt}
            answer = (await http.post(f"{prefix}/v1/completions", json=body)).json()
            num_tokens = answer["usage"]["prompt_tokens"]
            cached.prompts += num_tokens
            cached.hits += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            cached.possible += computed[index] // block_size * block_size
            computed[index] = num_tokens + ANSWER_TOKENS - 1  # the last token's KV is not computed
            told[index] += answer["choices"][0]["text"] + "and then? " * 8
    return cached


async def run(url: str, sessions: int, turns: int) -> Cached:
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as http:
        return await converse(http, sessions=sessions, turns=turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    print(asyncio.run(run(args.url, args.sessions, args.turns)))


if __name__ == "__main__":
    main()
