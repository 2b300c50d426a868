"""Rebuild a Hugging Face `tokenizer.json` from the vocabulary in a GGUF file of the Gemma family.

GGUF keeps the SentencePiece vocabulary (pieces, scores, kinds) but not the BPE merges. They follow from it: a merge is any
split of a piece into two pieces, and merges apply in the order of the scores. The result is plain JSON data; nothing here
imports the tokenizers library. For Gemma 3 this gives the published merge list, order included.
"""

from typing import Any

from inference_server.checkpoints.errors import CheckpointError

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "▁"
_MAX_PIECE = 4096  # characters; the search for a piece's merges grows with their square


def build_tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer.json` as a dict: byte-fallback BPE, space → ▁, control and user-defined pieces as added tokens.

    Raises `CheckpointError` if the metadata lacks the vocabulary or holds another kind of tokenizer.
    """
    if (kind := metadata.get("tokenizer.ggml.model")) != "llama":
        raise CheckpointError(f"the GGUF tokenizer {kind!r} is not supported, only SentencePiece vocabularies are")
    try:
        raw: list[str] = metadata["tokenizer.ggml.tokens"]
        scores: list[float] = metadata["tokenizer.ggml.scores"]
        kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    except KeyError as error:
        raise CheckpointError(f"the GGUF metadata lacks {error.args[0]}") from error
    pieces = [piece.replace(" ", _SPACE) for piece in raw]  # the GGUF writer spells user-defined runs of ▁ as spaces
    vocab = {piece: index for index, piece in enumerate(pieces)}
    if not len(vocab) == len(scores) == len(kinds):
        raise CheckpointError("the GGUF vocabulary is inconsistent: pieces repeat, or scores and kinds differ in number")
    if (longest := max(map(len, pieces), default=0)) > _MAX_PIECE:
        raise CheckpointError(f"the GGUF vocabulary is damaged: a piece has {longest} characters")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(pieces, kinds),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": None,
        "post_processor": _post_processor(metadata, pieces),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else pieces[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(vocab, scores, kinds),
        },
    }


def _merges(vocab: dict[str, int], scores: list[float], kinds: list[int]) -> list[list[str]]:
    """Every split of a piece into two pieces. Runs of white space (user-defined) come first, longest left half first;
    then by descending score of the merged piece, longest left half first."""
    runs: list[tuple[int, int, str, str]] = []
    ordinary: list[tuple[float, int, str, str]] = []
    for piece, index in vocab.items():
        if kinds[index] not in (_NORMAL, _USER_DEFINED):
            continue
        for cut in range(len(piece) - 1, 0, -1):
            left, right = piece[:cut], piece[cut:]
            if left not in vocab or right not in vocab:
                continue
            if kinds[index] == _NORMAL:
                ordinary.append((-scores[index], -cut, left, right))
            else:
                runs.append((-cut, -len(right), left, right))
    runs.sort(key=lambda merge: merge[:2])
    ordinary.sort(key=lambda merge: merge[:2])
    return [[left, right] for _, _, left, right in (*runs, *ordinary)]


def _added_tokens(pieces: list[str], kinds: list[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": piece, **flags, "special": kind == _CONTROL}
        for index, (piece, kind) in enumerate(zip(pieces, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _post_processor(metadata: dict[str, Any], pieces: list[str]) -> dict[str, Any] | None:
    """Put the begin-of-sequence token before every text, where the model asks for it."""
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", True):
        return None
    token = pieces[bos]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    second = {"SpecialToken": {"id": token, "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, second, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
    }
