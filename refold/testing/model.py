"""Write a 450 kB Llama model that behaves like an agent, without training and without downloads.

The weights are random but steered. A few residual channels are kept out of the reach of every
block, so what the embedding writes there reaches the output rows unchanged: channel 0 holds a
constant and gives each token its own bias, each further channel makes one token lead to another.
Together with the template `tools.jinja` the model calls a tool after every user message that
offers tools and answers in text after every tool result.

Every token is one byte or one special, and nothing merges: the token ids of a text are its bytes,
so equal bytes are equal tokens and re-reading history never moves a token boundary.

File format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

Template: TypeAlias = Literal["tools", "think"]
Value: TypeAlias = str | int | float | Sequence[str] | Sequence[int]
Tensor: TypeAlias = tuple[tuple[int, ...], list[float]]

WIDTH, LAYERS, HEADS, KV_HEADS, INNER = 64, 2, 4, 2, 128
HEAD = WIDTH // HEADS
CONTEXT = 131072
SEED = 42

CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
SPECIALS = {
    "<|endoftext|>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<|act|>": CONTROL,
    "<tool_call>": USER_DEFINED,
    "</tool_call>": USER_DEFINED,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
}

LETTERS = "abcdefghijklmnopqrstuvwxyz"

# What leads to what, by force (or, below zero, does not). The template ends a prompt with <|act|>
# when a call is wanted. The grammar of a call refuses </tool_call> until the outermost object is
# closed, so "}" may ask for it every time. Thoughts are in capitals, which is how the model knows
# that it is still thinking. No answer and no thought is empty.
LEADS = (
    (["<|act|>"], ["<tool_call>"], 12.0),
    (["}"], ["</tool_call>"], 12.0),
    (["</tool_call>"], ["<|im_end|>"], 12.0),
    (["<think>", *LETTERS.upper()], [*LETTERS.upper(), "</think>"], 3.0),
    (["<think>"], ["</think>"], -12.0),
    (["</think>", "\n"], ["<|im_end|>"], -12.0),
)
PUSH = 12.0
STEERED = 1 + len(LEADS)
CONSTANT = 4.0

# Text, strings and lists are short: the seed and these numbers were chosen together, so that at
# temperature 0.7 nothing rambles on. Blanks are out of the question: the server prints replayed
# arguments compactly, and would not find a call in its cache that was written otherwise.
BIAS = (
    dict.fromkeys(LETTERS, 1.0)
    | {'"': 1.7, "]": 1.0, "<|im_end|>": 1.0, "</think>": -2.5}
    | dict.fromkeys(",:{", 0.2)
    | dict.fromkeys(" \t\n\r", -6.0)
)
UNLIKELY = -3.0


def write_model(path: Path, template: Template) -> None:
    """Write the model with the chat template `tools` or `think` to the file `path`, as GGUF.

    The bytes depend on the template alone, not on the machine, the process or the clock. Raises
    OSError when the file cannot be written.
    """
    path.write_bytes(gguf(metadata(template), tensors(random.Random(SEED))))  # noqa: S311 - weights


def vocabulary() -> list[str]:
    """The tokens in the order of their ids: the 256 bytes, then the specials."""
    return [chr(byte) for byte in range(256)] + list(SPECIALS)


def metadata(template: Template) -> dict[str, Value]:
    """The keys that llama.cpp reads: the architecture, the tokenizer and the chat template."""
    ids = {token: number for number, token in enumerate(vocabulary())}
    return {
        "general.architecture": "llama",
        "general.name": "refold-tiny",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*map(_printable, range(256)), *SPECIALS],
        "tokenizer.ggml.token_type": [NORMAL] * 256 + list(SPECIALS.values()),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _template(template),
    }


def _template(template: Template) -> str:
    return Path(__file__).with_name(f"{template}.jinja").read_text("utf-8")


def _printable(byte: int) -> str:
    """The character that stands for a byte in a GPT-2 vocabulary: itself where it is visible."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in visible:
        return chr(byte)
    return chr(256 + sum(other not in visible for other in range(byte)))


def tensors(rng: random.Random) -> dict[str, Tensor]:
    """The weights by name, each with its shape (innermost dimension first)."""
    tokens = vocabulary()
    embedding = _random(rng, WIDTH, len(tokens), 1.0)
    output = _random(rng, WIDTH, len(tokens), 1 / math.sqrt(WIDTH))
    _steer(embedding, output, tokens)
    weights: dict[str, Tensor] = {"token_embd.weight": ((WIDTH, len(tokens)), embedding)}
    for layer in range(LAYERS):
        weights |= {f"blk.{layer}.{name}.weight": made for name, made in _block(rng)}
    weights["output_norm.weight"] = _ones()
    weights["output.weight"] = ((WIDTH, len(tokens)), output)
    return weights


def _steer(embedding: list[float], output: list[float], tokens: Sequence[str]) -> None:
    for token, row in zip(tokens, range(0, len(embedding), WIDTH), strict=True):
        embedding[row] = CONSTANT
        output[row] = BIAS.get(token, UNLIKELY)
        for channel, (before, after, strength) in enumerate(LEADS, start=1):
            embedding[row + channel] = PUSH * (token in before)
            output[row + channel] = strength * (token in after)


def _block(rng: random.Random) -> Iterator[tuple[str, Tensor]]:
    narrow = HEAD * KV_HEADS
    yield "attn_norm", _ones()
    yield "attn_q", _matrix(rng, WIDTH, WIDTH)
    yield "attn_k", _matrix(rng, WIDTH, narrow)
    yield "attn_v", _matrix(rng, WIDTH, narrow)
    yield "attn_output", _spared(_matrix(rng, WIDTH, WIDTH))
    yield "ffn_norm", _ones()
    yield "ffn_gate", _matrix(rng, WIDTH, INNER)
    yield "ffn_up", _matrix(rng, WIDTH, INNER)
    yield "ffn_down", _spared(_matrix(rng, INNER, WIDTH))


def _matrix(rng: random.Random, inputs: int, outputs: int) -> Tensor:
    return (inputs, outputs), _random(rng, inputs, outputs, 1 / math.sqrt(inputs))


def _random(rng: random.Random, inputs: int, outputs: int, deviation: float) -> list[float]:
    # Uniform, not Gaussian: the latter takes logarithms and cosines from the C library, and their
    # last digit differs between machines.
    bound = math.sqrt(3) * deviation
    return [bound * (2 * rng.random() - 1) for _ in range(inputs * outputs)]


def _ones() -> Tensor:
    return (WIDTH,), [1.0] * WIDTH


def _spared(tensor: Tensor) -> Tensor:
    """The same matrix with no output into the steered channels."""
    (inputs, _), weights = tensor
    for index in range(STEERED * inputs):
        weights[index] = 0.0
    return tensor


def gguf(metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> bytes:
    """A GGUF file, version 3, little endian, all tensors as 32-bit floats."""
    offset, infos, data = 0, [], []
    for name, (shape, weights) in tensors.items():
        raw = _aligned(struct.pack(f"<{len(weights)}f", *weights))
        infos.append(
            _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        )
        data.append(raw)
        offset += len(raw)
    pairs = [_string(key) + _typed(value) for key, value in metadata.items()]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    return b"".join([_aligned(b"".join([head, *pairs, *infos])), *data])


def _aligned(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 32)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Value) -> bytes:
    """A metadata value behind the number of its type."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
    return struct.pack("<I", 9) + _array(value)


def _array(values: Sequence[str] | Sequence[int]) -> bytes:
    kind = 8 if all(isinstance(value, str) for value in values) else 5
    packed = (_string(v) if isinstance(v, str) else struct.pack("<i", v) for v in values)
    return struct.pack("<IQ", kind, len(values)) + b"".join(packed)
