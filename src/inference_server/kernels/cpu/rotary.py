"""What happens to a token between its qkv projection and attention, on the CPU: `reference.norm_rotate_store` in one pass.

Heads are normed and rotated; queries go to their own tensor, keys and values straight into their slots of the bfloat16 cache.
"""

from inference_server.kernels.cpu.code import BFloats, Code, Float, Floats, Int, Ints
from inference_server.kernels.cpu.norm import Normed


def norm_rotate_store(
    code: Code,
    token: Int,
    qkv: Floats,
    weight: Floats,
    cos: Floats,
    sin: Floats,
    q: Floats,
    key: BFloats,
    value: BFloats,
    slots: Ints,
    num_heads: Int,
    num_kv_heads: Int,
    num_normed: Int,
    head_dim: Int,
    block_size: Int,
    block_stride: Int,
    eps: Float,
) -> None:
    """Heads of a token: queries, keys, values; the first num_normed are normed, queries and keys rotated.

    block_stride: elements from one block of key and value to the next; a block's slots lie side by side. num_kv_heads 0: no cache.
    """
    half = head_dim // 2
    heads: Floats = qkv + token * (num_heads + num_kv_heads * 2) * head_dim
    cosines: Floats = cos + token * half
    sines: Floats = sin + token * half
    queries: Floats = q + token * num_heads * head_dim

    def rotated(head: Int, target: Floats | BFloats) -> None:
        normed = Normed(code, heads + head * head_dim, weight + head * head_dim, head_dim, eps)
        with code.loop(half) as j:
            first, second = normed[j], normed[j + half]
            target[j] = first * cosines[j] - second * sines[j]
            target[j + half] = second * cosines[j] + first * sines[j]

    with code.loop(num_heads) as head:
        rotated(head, queries + head * head_dim)
    with code.when(code.integer(0) < num_kv_heads):
        slot = slots[token]
        start = slot // block_size * block_stride + slot % block_size * num_kv_heads * head_dim
        with code.loop(num_kv_heads) as kv_head:
            offset = start + kv_head * head_dim
            rotated(num_heads + kv_head, key + offset)
            head = num_heads + num_kv_heads + kv_head
            source: Floats = heads + head * head_dim
            target: BFloats = value + offset
            with code.when(head < num_normed):
                normed = Normed(code, source, weight + head * head_dim, head_dim, eps)
                with code.loop(head_dim) as j:
                    target[j] = normed[j]
            with code.when(num_normed < head + 1), code.loop(head_dim) as j:
                target[j] = source[j]
