"""Entries of the launch table for small-batch linear layers, and the launches that `tune_triton_launch.py` and `tune_in_step.py` try."""

import itertools
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from inference_server.kernels.gpu.launch import LaunchConfig, table_key
from inference_server.kernels.gpu.linear import operation
from inference_server.kernels.ops import Epilogue

SHARED_BYTES = 220_000  # an H200's, only to leave out what cannot be launched
PROCESSORS = 132  # an H200's
TURNS_FROM = 8_000_000  # weights; in smaller matrices, programs have no time to take turns
WIDE_TILES = [  # height in weight rows, rows of x, block_k, stages, warps
    (16, 16, 256, 6, 2),
    (16, 32, 256, 6, 4),
    (32, 64, 128, 4, 4),
    (64, 64, 128, 4, 4),
    (64, 128, 128, 3, 4),
    (128, 64, 64, 4, 8),
    (128, 128, 64, 4, 8),
]
TILES = [  # height in features, block_k, stages
    (16, 128, 6),
    (16, 128, 8),
    (16, 256, 4),
    (16, 256, 6),
    (32, 64, 6),
    (32, 64, 8),
    (32, 128, 3),
    (32, 128, 4),
    (32, 128, 6),
    (64, 64, 4),
    (64, 64, 5),
    (64, 64, 6),
    (64, 128, 3),
    (64, 128, 4),
    (64, 256, 4),
    (128, 64, 4),
]
SPLIT_TILES = [  # height in weight rows, block_k, stages, warps
    (32, 128, 4, 4),
    (32, 256, 4, 4),
    (64, 64, 4, 4),
    (64, 64, 6, 4),
    (64, 64, 8, 4),
    (64, 128, 3, 4),
    (64, 128, 4, 4),
    (64, 128, 6, 4),
    (64, 256, 4, 4),
    (128, 64, 4, 8),
    (128, 64, 6, 8),
    (128, 128, 3, 8),
    (128, 128, 4, 8),
    (128, 64, 4, 4),
]
INT8_TILES = [  # height in weight rows, block_k, stages; all with two warps, for the reason that `few_rows_default` gives
    (16, 256, 4),
    (32, 128, 4),
    (32, 256, 4),
    (64, 128, 4),
    (64, 128, 6),
    (64, 256, 3),
]
SHORT_SPLIT_TILES = [(16, 128, 2, 2), (16, 256, 1, 2), (32, 64, 2, 4), (32, 128, 2, 4), (32, 256, 1, 4), (64, 64, 2, 4), (64, 128, 2, 4)]


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of the table. norm: one row, with a norm before the product. split: several rows, whose sums the next norm can add up."""

    rows: int
    n: int
    k: int
    epilogue: Epilogue
    norm: bool = False
    split: bool = False
    int8: bool = False

    @property
    def highest(self) -> bool:
        """Whether it makes logits and chooses the highest of each row."""
        return self.rows > 1 and self.epilogue.out_dtype is not None and not self.epilogue.partial

    @property
    def key(self) -> str:
        return table_key(operation(self.rows, self.epilogue, norm=self.norm, split=self.split, int8=self.int8), self.n, self.k)


def cases(rows: int, n: int, k: int, epilogue: Epilogue, int8: bool) -> Iterator[Case]:
    yield Case(rows, n, k, epilogue, split=rows > 1 and epilogue.partial, int8=int8)
    if rows == 1 and not epilogue.partial and epilogue.out_dtype is None:
        yield Case(1, n, k, epilogue, norm=True, int8=int8)


def candidates(case: Case) -> Iterator[LaunchConfig]:
    matrices, size = 2 if case.epilogue.gated else 1, 1 if case.int8 else 2
    if case.rows == 1:
        many_rows, many_warps = (1, 2, 4, 8, 16, 32), (2, 4, 8) if case.k > 1536 else (2, 4)
        for rows, block_k, warps in itertools.product(many_rows, (256, 512, 1024, 2048), many_warps):
            bytes_per_thread = rows * case.k * matrices * size // (warps * 32)
            chunked = block_k >= 512 or case.k <= 256
            if case.k % block_k == 0 and chunked and 24 <= bytes_per_thread <= 384 and rows * block_k >= warps * 256:
                yield LaunchConfig(rows, block_k, warps)
                tiles = case.n // matrices // rows
                for turns in (2, 3, 4):
                    if tiles >= turns * PROCESSORS and case.n * case.k >= TURNS_FROM:
                        yield LaunchConfig(rows, block_k, warps, programs=-(-tiles // turns))
        return
    if case.rows >= 64:
        yield from wide_candidates(case, matrices)
    elif case.int8:
        yield from int8_candidates(case, matrices)
    else:
        yield from split_candidates(case) if case.split else tile_candidates(case, matrices, size)


def int8_candidates(case: Case, matrices: int) -> Iterator[LaunchConfig]:
    """If sums may be split, from half a program a multiprocessor to two; else one a tile, or about two a multiprocessor, taking turns."""
    for (height, block_k, stages), splits in itertools.product(INT8_TILES, (1, 2, 4, 5, 8) if case.split else (1,)):
        tiles = case.n // height
        widened_once = height >= 2 * case.rows or case.n * case.k < TURNS_FROM
        fits = case.k % block_k == 0 and splits * block_k <= case.k and block_k * stages <= max(512, case.k // splits)
        if case.split:
            enough = PROCESSORS // 2 <= tiles * splits <= 2 * PROCESSORS or case.k <= 512
        else:
            enough = 16 <= tiles <= PROCESSORS * (4 if height < 64 else 64)
        if widened_once and fits and enough:
            tile = LaunchConfig(height // matrices, block_k, 2, stages, splits)
            yield tile
            if not case.split and tiles > 1.3 * 2 * PROCESSORS:
                yield replace(tile, programs=-(-tiles // -(-tiles // (2 * PROCESSORS))))


def split_candidates(case: Case) -> Iterator[LaunchConfig]:
    """Splits with programs for a third of the multiprocessors up to a little more than two for each."""
    tiles = SPLIT_TILES if case.k > 512 else SHORT_SPLIT_TILES
    if case.n <= 256:
        tiles = [*tiles, (16, 256, 2, 4)]
    for (rows, block_k, stages, warps), split in itertools.product(tiles, (1, 2, 3, 4, 5, 8, 11)):
        fills_the_card = min(case.n // 8, PROCESSORS // 3) <= case.n // rows * split <= 2.2 * PROCESSORS
        if fills_the_card and case.k % block_k == 0 and block_k * stages <= max(512, case.k // split):
            for tokens in many_tokens(case):
                yield LaunchConfig(rows, block_k, warps, stages, split, tokens=tokens)


def many_tokens(case: Case) -> tuple[int, ...]:
    """How many rows of x a program takes; 0 for all. Half is tried for small weights, whose few programs take long to read x."""
    return (0, case.rows // 2) if case.rows > 16 and case.n * case.k < 1_000_000 else (0,)


def wide_candidates(case: Case, matrices: int) -> Iterator[LaunchConfig]:
    """Tiles over weight rows and rows of x. About one or two programs a multiprocessor: few tiles split their sums, many take turns."""
    for height, tokens, block_k, stages, warps in WIDE_TILES:
        rows, across = height // matrices, case.rows // tokens
        tiles = case.n // matrices // rows * across
        if not across or case.k % block_k or not 16 <= tiles <= PROCESSORS * (2 if height < 64 else 64):
            continue
        tile = LaunchConfig(rows, block_k, warps, stages, tokens=tokens)
        if case.split:
            most = max(1, case.k // block_k // 2)
            shares = {max(1, min(beside * PROCESSORS // tiles, most, 8)) for beside in (1, 2)}
            yield from (replace(tile, splits=splits) for splits in shares)
        else:
            turns = [beside * PROCESSORS for beside in (1, 2) if height >= 64 and tiles > 1.3 * beside * PROCESSORS]
            yield from (replace(tile, programs=programs // across) for programs in (0, *turns))


def tile_candidates(case: Case, matrices: int, size: int) -> Iterator[LaunchConfig]:
    """One tile a program; or as many programs as fit on the card, which take turns; or as few as need no more turns."""
    for rows, block_k, stages in TILES:
        height, num_tiles = rows * matrices, case.n // matrices // rows
        shared = (height * size + max(16, case.rows) * 2) * block_k * stages
        if num_tiles >= 8 and case.k % block_k == 0 and block_k * stages <= case.k and shared <= SHARED_BYTES:
            many_programs = {0}
            for programs in (PROCESSORS, 2 * PROCESSORS):
                if height >= 64 and num_tiles > 1.3 * programs and programs * shared <= SHARED_BYTES * PROCESSORS:
                    many_programs |= {programs, -(-num_tiles // -(-num_tiles // programs))}
            many_warps = [2] if height <= 32 else [4] if height < 128 else [4, 8] if height == 128 else [8]
            for warps, programs, tokens in itertools.product(many_warps, sorted(many_programs), many_tokens(case)):
                yield LaunchConfig(rows, block_k, warps, stages, programs=programs, tokens=tokens)


def table_fields(config: LaunchConfig) -> list[int]:
    """The fields of `config` as the table holds them, without defaults at the end."""
    fields = list(astuple(config))
    while len(fields) > 5 and not fields[-1]:
        fields.pop()
    return fields
