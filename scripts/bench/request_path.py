"""What a request costs a server beside the forward, by the length of its prompt: processor time by thread.

    PYTHONPATH=src OMP_NUM_THREADS=1 python scripts/bench/request_path.py [--lengths 128 1024 8192] [--tokenizer FOLDER]

The real server runs in a process of its own, on the host side of a CUDA backend without its copies, launches and graphs (`host_rig.py`),
with the prefix cache on. Requests come one at a time, each streamed, with one token out, a new connection and a new prompt; the least of
several samples counts. With a tokenizer it also sends texts and chats, of four characters for each token of the lengths. The threads that
tokenise long texts count as `others`.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from fake_model import CONTENTS
from host_rig import VOCAB_SIZE, load_model
from host_step import TEXT, words_of
from http_load.light_client import chat, completion, stream_all
from response_path import running, wait_ready
from response_server import Reading, run_loaded

from inference_server.config import Settings
from inference_server.engine.loaded_model import LoadedModel
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer

WARM, A_SAMPLE = 4, 8
CHARACTERS = 4  # about as many as a token of English text has
MARGIN = 512
Request = Callable[[str], bytes]  # from the server's address to the bytes to send


def load(tokenizer: Path | None, max_len: int) -> LoadedModel:
    torch.set_num_threads(1)
    of_ids = ByteTokenizer(VOCAB_SIZE) if tokenizer is None else Tokenizer.from_folder(tokenizer)
    return load_model(of_ids, words_of(of_ids), max_len, CONTENTS)


def ids_of(length: int) -> Request:
    ids = [random.randrange(VOCAB_SIZE) for _ in range(length)]
    return lambda url: completion(url, ids, 1)


def text_of(length: int) -> str:
    text = TEXT.read_text(encoding="utf-8")
    start, size = random.randrange(len(text)), CHARACTERS * length
    return f"{random.random()} {text[start:] + text * (size // len(text) + 1)}"[:size]


def prompt_of(length: int) -> Request:
    return lambda url: completion(url, text_of(length), 1)


def chat_of(length: int) -> Request:
    return lambda url: chat(url, text_of(length), 1)


def measure(url: str, read: Callable[[], Reading], make: Callable[[int], Request], length: int, samples: int) -> list[float]:
    """Milliseconds a request of the event loop, of the engine's thread and of other threads, each the least of the samples."""
    readings: list[Reading] = []
    for number in (WARM, *[A_SAMPLE] * samples):
        requests = [make(length)(url) for _ in range(number)]
        for request in requests:
            stream_all(url, [request])
        readings.append(read())
    return [1e3 / A_SAMPLE * min(part(b) - part(a) for a, b in pairwise(readings)) for part in PARTS]


PARTS: Sequence[Callable[[Reading], float]] = (
    lambda reading: reading.loop_s,
    lambda reading: reading.engine_s,
    lambda reading: reading.process_s - reading.loop_s - reading.engine_s,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 8192])
    parser.add_argument("--samples", type=int, default=6, help=f"number of samples of {A_SAMPLE} requests each")
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer.json")
    args = parser.parse_args()
    settings = Settings(_env_file=None, model_name="none", log_level="warning")
    kinds: dict[str, Callable[[int], Request]] = {"ids": ids_of}
    if args.tokenizer is not None:
        kinds |= {"text": prompt_of, "chat": chat_of}
    run = partial(run_loaded, settings, partial(load, args.tokenizer, 2 * max(args.lengths) + MARGIN))
    with running(run) as (url, read):
        wait_ready(url)
        for kind, make in kinds.items():
            for length in args.lengths:
                loop, engine, others = measure(url, read, make, length, args.samples)
                print(f"{kind:5} {length:6d}: loop {loop:6.2f} ms, engine {engine:6.2f}, others {others:6.2f}", flush=True)


if __name__ == "__main__":
    main()
