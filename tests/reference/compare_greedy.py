"""Compares lathe's greedy answers with mlx_lm's in float32, on the CPU.

Run by hand, with `pip install mlx[cpu] mlx-lm transformers`:

    python tests/reference/compare_greedy.py target/release/lathe NAME FOLDER [--store DIR]

NAME is a model that `lathe create` made of FOLDER at source precision.
"""

import json
import subprocess
import sys

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

PLAIN = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
]
CHAT = [
    "Why is the sky blue?",
    "Write a short poem about rain.",
    "List three prime numbers and explain what a prime is.",
]
TOKENS = 64


def greedy(model, ids, ends):
    cache = make_prompt_cache(model)
    logits = model(mx.array([ids]), cache=cache)
    answer = []
    while len(answer) < TOKENS:
        token = mx.argmax(logits[0, -1]).item()
        if token in ends:
            break
        answer.append(token)
        logits = model(mx.array([[token]]), cache=cache)
    return answer


def main(program, name, folder, *rest):
    mx.set_default_device(mx.cpu)
    model, tokenizer = load(folder)
    model.update(tree_map(lambda x: x.astype(mx.float32), model.parameters()))
    has_template = tokenizer.chat_template is not None
    bad = 0
    for raw, prompts in [(True, PLAIN), (False, CHAT if has_template else [])]:
        for prompt in prompts:
            if raw:
                ids = tokenizer.encode(prompt)
            else:
                ids = tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}], add_generation_prompt=True
                )
            theirs = greedy(model, ids, tokenizer.eos_token_ids)
            command = [program, "run", name, prompt, "--temperature", "0", "-n", str(TOKENS),
                       "--output", "json", *rest] + (["--raw"] if raw else [])
            done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
            ours = json.loads(done.stdout)
            same = ours["tokens"] == theirs and ours["statistics"]["prompt_tokens"] == len(ids)
            if raw:
                same = same and ours["text"] == tokenizer.decode(theirs, skip_special_tokens=True)
            bad += not same
            rates = ours["statistics"]
            print(f"{'same  ' if same else 'DIFFER'} {len(theirs)} tokens, prompt {len(ids)}, "
                  f"prefill {rates['prefill_tokens_per_second']:.1f} tok/s, "
                  f"decode {rates['decode_tokens_per_second']:.1f} tok/s: {prompt[:40]!r}")
            if not same:
                print("  ours:  ", ours["tokens"], repr(ours["text"]))
                print("  theirs:", theirs, repr(tokenizer.decode(theirs)))
    return bad


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    sys.exit(min(1, main(*sys.argv[1:])))
