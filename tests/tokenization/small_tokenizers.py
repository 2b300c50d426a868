"""Two small trained vocabularies in Hugging Face folders: byte-level (as Qwen's) and byte-fallback (as Gemma's)."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "def f(x):\n    return x + 1\n",
    "größe und naïveté",
    "日本語の文章",
    "emoji 😀😀",
] * 3
TEXTS = [
    "",
    "the quick brown fox",
    " leading and trailing ",
    "def g(y):\n\treturn   y\n\n\n",
    "größe, naïveté, ångström",
    "日本語の新しい文章。你好",
    "😀 🧑‍🚀 🇫🇷 👩‍👩‍👧",
    "नमस्ते مرحبا שלום",
    "a\u0301 \u200b \ufeff \x00 \x7f \ufffd",
    "<0x41> ▁ Ġ <eos> <end>",
]


def byte_level_folder(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<eos>", "<end>"])
    tokenizer.add_tokens(["tool call"])
    return _write(folder, tokenizer, {"eos_token": "<eos>", "add_bos_token": False, "bos_token": None})


def byte_fallback_folder(folder: Path) -> Path:
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    letters = sorted({c for text in CORPUS for c in text.replace(" ", "▁")} - {"日", "😀"})
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e"), ("o", "w"), ("n", "d")]
    vocab = {piece: i for i, piece in enumerate([*pieces, *letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<end>"])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    tokenizer.enable_truncation(4)
    config = {"bos_token": {"content": "<bos>", "special": True}, "eos_token": "<eos>", "add_bos_token": True}
    folder = _write(folder, tokenizer, config)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.token_to_id("<end>"), 1]}))
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 1}}))
    return folder


def _write(folder: Path, tokenizer: Tokenizer, config: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
