"""Planning from headers alone: a mixture of experts of 1,000 to 1,000,000 tensors, on one core.

The inventories have the names and shapes of Qwen3-Next; 75,944 tensors are the published model's.
That one must take under a second; `other` of each other size is the time in proportion to it, so
a factor of 1 means that time grows linearly.
"""

import json
import shutil

from common import Row, measure, median

PUBLISHED = 75_944
# (tensors about, layers, experts)
SIZES = [(1_000, 48, 2), (10_000, 48, 64), (PUBLISHED, 48, 512), (300_000, 192, 512), (1_000_000, 643, 512)]


def run(context):
    one_core = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    seconds = {}
    for about, layers, experts in SIZES:
        file = context.scratch / f"{about}.inventory.json"
        tensors = write(file, layers, experts)
        command = [*one_core, context.lathe, "create", "bench", file, "--quantize", "int4",
                   "--dry-run", "--store", context.scratch / "no-store", "--output", "json"]
        runs = context.runs if about <= PUBLISHED else min(context.runs, 3)
        seconds[tensors] = median([measure(command) for _ in range(runs)], "seconds")
        file.unlink()
    for tensors, took in seconds.items():
        published = tensors == PUBLISHED
        limit = 1 if published else seconds[PUBLISHED] * tensors / PUBLISHED
        yield Row(f"plan {tensors:,} tensors", took, limit, "s", 1 if published else None)
    command = [context.lathe, "create", "bench", context.model, "--quantize", "int4", "--dry-run"]
    took = median([measure(command) for _ in range(context.runs)], "seconds")
    yield Row("plan the model's folder", took, 0.05, "s", 1)


def write(file, layers, experts):
    config = {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
        "num_hidden_layers": layers, "num_experts": experts, "full_attention_interval": 4,
        "vocab_size": 151936, "tie_word_embeddings": False,
    }
    tensors = list(names(layers, experts))
    shards = [{"name": "model.safetensors", "size": 1 << 40}]
    inventory = {"version": 1, "config": config, "shards": shards,
                 "tensors": [[name, "BF16", shape, 0] for name, shape in tensors]}
    file.write_text(json.dumps(inventory))
    return len(tensors)


def names(layers, experts):
    yield "model.embed_tokens.weight", [151936, 2048]
    yield "lm_head.weight", [151936, 2048]
    yield "model.norm.weight", [2048]
    for layer in range(layers):
        yield from block(f"model.layers.{layer}", experts, full=layer % 4 == 3)
    yield "mtp.fc.weight", [2048, 4096]
    for norm in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"]:
        yield f"mtp.{norm}.weight", [2048]
    yield from block("mtp.layers.0", experts, full=True)


def block(at, experts, full):
    for norm in ["input_layernorm", "post_attention_layernorm"]:
        yield f"{at}.{norm}.weight", [2048]
    if full:
        for part, rows in [("q", 8192), ("k", 512), ("v", 512)]:
            yield f"{at}.self_attn.{part}_proj.weight", [rows, 2048]
        yield f"{at}.self_attn.o_proj.weight", [2048, 4096]
        for part in "qk":
            yield f"{at}.self_attn.{part}_norm.weight", [256]
    else:
        mixer = f"{at}.linear_attn"
        yield f"{mixer}.in_proj_qkvz.weight", [12288, 2048]
        yield f"{mixer}.in_proj_ba.weight", [64, 2048]
        yield f"{mixer}.conv1d.weight", [8192, 1, 4]
        yield f"{mixer}.A_log", [32]
        yield f"{mixer}.dt_bias", [32]
        yield f"{mixer}.norm.weight", [128]
        yield f"{mixer}.out_proj.weight", [2048, 4096]
    yield f"{at}.mlp.gate.weight", [experts, 2048]
    yield f"{at}.mlp.shared_expert_gate.weight", [1, 2048]
    for module in ["shared_expert", *(f"experts.{n}" for n in range(experts))]:
        for part in ["gate", "up"]:
            yield f"{at}.mlp.{module}.{part}_proj.weight", [512, 2048]
        yield f"{at}.mlp.{module}.down_proj.weight", [2048, 512]
