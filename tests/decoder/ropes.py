"""Writes ropes.json: what transformers 5.24.0 makes of the forms in which configs give rotary positions.

usage: ropes.py OUT

`base` is a config, and each case changes it. `lengths` gives the factor on cosines and sines, and the
frequencies, that a Llama of it uses in one pass over so many tokens; a length that is not there is like
the one before. A case that transformers does not take has none.
"""
import json, sys, tempfile, warnings

import torch
import transformers as T

warnings.filterwarnings("ignore")
T.logging.set_verbosity_error()
BASE = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
            architectures=["LlamaForCausalLM"], model_type="llama")
LISTS = dict(short_factor=[1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0], long_factor=[1.5, 2, 3, 4, 6, 8, 10, 12])
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)

CASES = {
    "plain": dict(rope_theta=5e5),
    "scaling null": dict(rope_theta=5e5, rope_scaling=None),
    "nothing": dict(),
    "default": dict(rope_parameters=dict(rope_type="default", rope_theta=5e4)),
    "theta inside and beside": dict(rope_theta=7e4, rope_parameters=dict(rope_type="default", rope_theta=5e4)),
    "mrope_section": dict(rope_scaling=dict(type="default", mrope_section=[2, 3, 3])),
    "mrope_section without a type": dict(rope_parameters=dict(rope_theta=1e6, mrope_section=[2, 3, 3])),
    "both": dict(rope_scaling=dict(type="linear", factor=4.0), rope_parameters=dict(rope_type="default", rope_theta=5e4)),
    "both, and theta": dict(rope_theta=7e4, rope_scaling=dict(type="linear", factor=4.0),
                            rope_parameters=dict(rope_type="default", rope_theta=5e4)),
    "an empty one": dict(rope_scaling={}, rope_parameters=dict(rope_type="default", rope_theta=5e4)),
    "linear": dict(rope_scaling=dict(type="linear", factor=2)),
    "linear of a part": dict(rope_scaling=dict(type="linear", factor=2.0, partial_rotary_factor=0.5)),
    "linear of an odd part": dict(rope_scaling=dict(type="linear", factor=2.0, partial_rotary_factor=0.45)),
    "dynamic": dict(rope_scaling=dict(type="dynamic", factor=2.0)),
    "dynamic of a part": dict(rope_scaling=dict(rope_type="dynamic", factor=4.0, partial_rotary_factor=0.5)),
    "llama3": dict(rope_scaling=dict(rope_type="llama3", original_max_position_embeddings=16, **LLAMA3)),
    "llama3 without the first length": dict(rope_scaling=dict(rope_type="llama3", **LLAMA3)),
    "llama3 with the first length beside": dict(original_max_position_embeddings=32,
        rope_scaling=dict(rope_type="llama3", original_max_position_embeddings=16, **LLAMA3)),
    "longrope": dict(rope_scaling=dict(type="longrope", original_max_position_embeddings=32, **LISTS)),
    "longrope with the first length beside": dict(original_max_position_embeddings=32, rope_scaling=dict(type="longrope", **LISTS)),
    "longrope with a factor": dict(rope_scaling=dict(type="longrope", factor=8.0, original_max_position_embeddings=32, **LISTS)),
    "longrope with an attention factor": dict(rope_scaling=dict(type="longrope", attention_factor=1.5,
        original_max_position_embeddings=32, **LISTS)),
    "longrope without the first length": dict(rope_scaling=dict(type="longrope", **LISTS)),
    "yarn": dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "yarn without the first length": dict(rope_scaling=dict(type="yarn", factor=4.0)),
    "yarn with the first length beside": dict(original_max_position_embeddings=32,
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "yarn with a null factor": dict(rope_scaling=dict(type="yarn", factor=None, original_max_position_embeddings=16)),
    "yarn not truncated": dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64, truncate=False)),
    "yarn with truncate null": dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64, truncate=None)),
    "yarn with both mscales": dict(rope_scaling=dict(type="yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.5)),
    "yarn with one mscale": dict(rope_scaling=dict(type="yarn", factor=4.0, mscale=0.7)),
    "yarn with an attention factor": dict(rope_scaling=dict(type="yarn", factor=4.0, attention_factor=0.9, beta_fast=16, beta_slow=2)),
    "yarn with betas of 0": dict(rope_scaling=dict(type="yarn", factor=4.0, beta_fast=0, beta_slow=None)),
    "type null": dict(rope_scaling=dict(rope_type=None, type="linear", factor=4.0)),
    "type null alone": dict(rope_scaling=dict(rope_type=None)),
    "unknown type": dict(rope_scaling=dict(type="ntk", factor=4.0)),
    "linear without a factor": dict(rope_scaling=dict(type="linear")),
    "yarn without a factor": dict(rope_scaling=dict(type="yarn", original_max_position_embeddings=16)),
    "theta null inside": dict(rope_theta=5e5, rope_parameters=dict(rope_type="default", rope_theta=None)),
    "a factor that is a text": dict(rope_scaling=dict(type="linear", factor="4")),
    "no object": dict(rope_scaling="linear"),
}


LENGTHS = (20, 33, 65, 100)


def of_lengths(config):
    with tempfile.TemporaryDirectory() as folder:
        json.dump(config, open(folder + "/config.json", "w"))
        made = T.AutoConfig.from_pretrained(folder)
        found, last = {}, None
        for length in LENGTHS:
            rope = T.LlamaForCausalLM(made).model.rotary_emb
            rope(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None])
            now = [float(f"{x:.7g}") for x in [float(rope.attention_scaling)] + rope.inv_freq.tolist()]
            if now != last:
                found[length] = last = now
        return found


def one(name, changes):
    try:
        return dict(name=name, config=changes, lengths=of_lengths(BASE | changes))
    except Exception:
        return dict(name=name, config=changes)


if __name__ == "__main__":
    cases = [one(*case) for case in CASES.items()]
    with open(sys.argv[1], "w") as out:
        lines = ",\n".join(json.dumps(case) for case in cases)
        out.write('{"base": %s, "lengths": %s, "cases": [\n%s\n]}\n' % (json.dumps(BASE), list(LENGTHS), lines))
    print(len(cases), [case["name"] for case in cases if "lengths" not in case])
