#!/usr/bin/env python3
"""Turns a GGUF file of a llama or gemma3 model into a Hugging Face folder: BF16 safetensors,
config.json, generation_config.json, tokenizer.json and tokenizer_config.json.

A GGUF that was quantized gives the dequantized values; the folder is for trying and testing.
Needs numpy and gguf.
"""

import argparse
import json
import re
import struct
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA3 = LLAMA | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NAMES = {"llama": LLAMA, "gemma3": GEMMA3}

CONTROL, USER_DEFINED = 3, 4  # token types of GGUF


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("gguf", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--shard-mb", type=int, default=0, help="split the weights into shards")
    arguments.add_argument("--chat-template", type=Path, help="instead of the one in the GGUF")
    given = arguments.parse_args()
    template = given.chat_template.read_text() if given.chat_template else None
    convert(given.gguf, given.out, given.shard_mb, template)


def convert(gguf, out, shard_mb=0, template=None):
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields["general.architecture"]
    if architecture not in NAMES:
        raise SystemExit(f"{gguf}: architecture {architecture}, not one of {', '.join(NAMES)}")
    weights = read_weights(reader, fields, architecture)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config(fields, architecture, weights))
    ids = special_ids(fields)
    del ids["unk_token_id"]
    write_json(out / "generation_config.json", ids)
    vocabulary = tokenizer(fields)
    write_json(out / "tokenizer.json", vocabulary, indent=None)
    write_json(out / "tokenizer_config.json", tokenizer_config(fields, vocabulary, template))
    write_weights(out, weights, shard_mb)


def write_json(path, value, indent=2):
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False), encoding="utf-8")


# Weights


def read_weights(reader, fields, architecture):
    """Name -> BF16 bits as uint16, in natural order of names."""
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(axis) for axis in reversed(tensor.shape)])
        if architecture == "gemma3" and values.ndim == 1:
            values = values - 1.0  # GGUF holds 1 + weight
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if not block:
            weights[TOP[tensor.name]] = bf16(values)
            continue
        layer, kind = block.groups()
        if architecture == "llama" and kind in ("attn_q", "attn_k"):
            heads = fields[f"llama.attention.head_count{'' if kind == 'attn_q' else '_kv'}"]
            values = unpermute(values, heads)
        weights[f"model.layers.{layer}.{NAMES[architecture][kind]}.weight"] = bf16(values)
    natural = lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]
    return {name: weights[name] for name in sorted(weights, key=natural)}


def unpermute(values, heads):
    """Undoes the order that llama.cpp gives query and key rows for its kind of RoPE."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bf16(values):
    """Rounds finite values to the nearest BF16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_weights(out, weights, shard_mb):
    if not shard_mb:
        return write_safetensors(out / "model.safetensors", weights)
    shards, size = [{}], 0
    for name, values in weights.items():
        if shards[-1] and size + values.nbytes > shard_mb * 1_000_000:
            shards.append({})
            size = 0
        shards[-1][name] = values
        size += values.nbytes
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards):
        write_safetensors(out / file, shard)
    total = sum(values.nbytes for values in weights.values())
    places = {name: file for file, shard in zip(files, shards) for name in shard}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    write_json(out / "model.safetensors.index.json", index)


def write_safetensors(path, weights):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, values in weights.items():
        end = offset + values.nbytes
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in weights.values():
            file.write(values.tobytes())


# Configuration


def special_ids(fields):
    kinds = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        f"{ours}_token_id": fields.get(f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in kinds.items()
    }


def config(fields, architecture, weights):
    get = lambda key: fields.get(f"{architecture}.{key}")
    decimal = lambda value: float(f"{value:.6g}")  # GGUF holds F32: 9.99999975e-06 is 1e-05
    ids = special_ids(fields)
    del ids["unk_token_id"]
    common = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        **ids,
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "max_position_embeddings": get("context_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_hidden_layers": get("block_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "rms_norm_eps": decimal(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": decimal(get("rope.freq_base")),
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
    }
    if architecture == "llama":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "mlp_bias": False,
            "head_dim": get("rope.dimension_count"),
            **common,
        }
    full = lambda layer: (layer + 1) % 6 == 0
    layers = range(get("block_count"))
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": get("attention.key_length"),
        "query_pre_attn_scalar": get("attention.key_length"),
        "sliding_window": get("attention.sliding_window"),
        "rope_local_base_freq": 10000.0,
        "layer_types": ["full_attention" if full(i) else "sliding_attention" for i in layers],
        **common,
    }


# Tokenizer


def tokenizer(fields):
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    kind = fields["tokenizer.ggml.model"]
    if kind == "llama":  # llama.cpp's converter turned runs of ▁ into plain spaces
        tokens = [t.replace(" ", "▁") if ty == USER_DEFINED else t for t, ty in zip(tokens, types)]
    added = [
        added_token(i, token, types[i] == CONTROL and not token.startswith("<unused"))
        for i, token in enumerate(tokens)
        if types[i] in (CONTROL, USER_DEFINED)
    ]
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if kind == "gpt2":
        return base | byte_level(fields, vocabulary)
    return base | sentencepiece(fields, tokens, types, vocabulary)


def added_token(id, content, special):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **plain, "special": special}


BPE = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def byte_level(fields, vocabulary):
    if fields["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"unknown pre-tokenizer {fields['tokenizer.ggml.pre']}")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    merges = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, level]},
        "post_processor": None,
        "decoder": level | {"add_prefix_space": True},
        "model": BPE | {"vocab": vocabulary, "merges": merges},
    }


def sentencepiece(fields, tokens, types, vocabulary):
    scores = fields["tokenizer.ggml.scores"]
    pieces = {t: scores[i] for i, t in enumerate(tokens) if types[i] not in (CONTROL, USER_DEFINED)}
    # User-defined pieces (runs of blanks, newlines, tags) come from merges too, and before others.
    pieces |= {t: 1.0 for i, t in enumerate(tokens) if types[i] == USER_DEFINED}
    bos = tokens[fields["tokenizer.ggml.bos_token_id"]]
    special = lambda type_id: {"SpecialToken": {"id": bos, "type_id": type_id}}
    part = lambda name: {"Sequence": {"id": name, "type_id": "AB".index(name)}}
    blank = {"pattern": {"String": " "}}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "normalizer": {"type": "Replace", **blank, "content": "▁"},
        "pre_tokenizer": {"type": "Split", **blank, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special(0), part("A")],
            "pair": [special(0), part("A"), special(1), part("B")],
            "special_tokens": {bos: {"id": bos, "ids": [vocabulary[bos]], "tokens": [bos]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": BPE
        | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
        | {"vocab": vocabulary, "merges": merges(vocabulary, pieces)},
    }


def merges(vocabulary, pieces):
    """Every split of every piece into two known ones, in the order of transformers' conversion."""
    found = []
    for piece, score in pieces.items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        splits = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
        splits.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(left, right, score) for left, right in splits]
    found.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [[left, right] for left, right, _ in found]


def tokenizer_config(fields, vocabulary, template):
    tokens = fields["tokenizer.ggml.tokens"]
    names = {key.removesuffix("_id"): i for key, i in special_ids(fields).items() if i is not None}
    added = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in vocabulary["added_tokens"]
    }
    gpt2 = fields["tokenizer.ggml.model"] == "gpt2"
    config = {
        "tokenizer_class": "GPT2Tokenizer" if gpt2 else "GemmaTokenizerFast",
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token")),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields[f"{fields['general.architecture']}.context_length"],
        **{name: tokens[i] for name, i in names.items()},
        "added_tokens_decoder": added,
    }
    template = template or fields.get("tokenizer.chat_template")
    return config | ({"chat_template": template} if template else {})


if __name__ == "__main__":
    main()
