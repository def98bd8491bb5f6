"""Compares lathe's sampling with transformers' logits processors, in float64 numpy.

transformers' processors need torch; their definitions are restated here from
`generation/logits_process.py` of transformers 5, in the order in which `generate` applies them.

    cargo build --release --example sample
    python tests/reference/compare_sampling.py target/release/examples/sample
"""

import json
import random
import subprocess
import sys

import numpy as np


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def process(case):
    x = np.array(case["logits"], dtype=np.float32).astype(np.float64)
    s = case["settings"]
    for token, bias in s.get("logit_bias", []):
        x[token] += bias
    if (p := s.get("repetition_penalty", 1.0)) != 1.0:
        for token in set(case["prompt"] + case["answer"]):
            x[token] = x[token] * p if x[token] < 0 else x[token] / p
    for token in set(case["answer"]):
        # As in OpenAI's API reference and vLLM: of the answer's tokens only.
        x[token] -= s.get("presence_penalty", 0.0)
        x[token] -= s.get("frequency_penalty", 0.0) * case["answer"].count(token)
    x = x / s["temperature"]
    if k := s.get("top_k", 0):  # TopKLogitsWarper
        k = min(k, len(x))
        x[x < np.sort(x)[-k]] = -np.inf
    if (p := s.get("top_p", 1.0)) < 1.0:  # TopPLogitsWarper
        order = np.argsort(x, kind="stable")
        cumulative = softmax(x[order]).cumsum()
        remove = cumulative <= 1 - p
        remove[-1:] = False
        x[order[remove]] = -np.inf
    if (p := s.get("min_p", 0.0)) > 0.0:  # MinPLogitsWarper
        probs = softmax(x)
        x[probs < p * probs.max()] = -np.inf
    if (mass := s.get("typical_p", 1.0)) < 1.0:  # TypicalLogitsWarper
        probs = softmax(x)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(probs)
            entropy = -np.nansum(logs * probs)
            shifted = np.abs(-logs - entropy)
        order = np.argsort(shifted, kind="stable")
        last = min((probs[order].cumsum() < mass).sum(), len(x) - 1)
        x[shifted > shifted[order][last]] = -np.inf
    return softmax(x)


def cases(rng):
    for _ in range(600):
        size = rng.choice([5, 50, 1000, 5000])
        scale = rng.choice([0.5, 2.0, 6.0])
        case = {
            "logits": [float(np.float32(rng.gauss(0, scale))) for _ in range(size)],
            "prompt": [rng.randrange(size) for _ in range(rng.randrange(8))],
            "answer": [rng.randrange(size) for _ in range(rng.randrange(8))],
            "settings": {"temperature": rng.choice([0.3, 0.7, 1.0, 1.7])},
        }
        options = {
            "top_k": rng.choice([1, 3, 40]),
            "top_p": rng.choice([0.1, 0.5, 0.9, 0.99]),
            "min_p": rng.choice([0.01, 0.1, 0.5]),
            "typical_p": rng.choice([0.2, 0.6, 0.95]),
            "repetition_penalty": rng.choice([0.8, 1.1, 2.0]),
            "presence_penalty": rng.choice([-0.5, 0.7]),
            "frequency_penalty": rng.choice([-0.3, 0.4]),
            "logit_bias": [[rng.randrange(size), rng.choice([-5.0, 3.0])]],
        }
        for name in rng.sample(sorted(options), rng.randrange(0, 4)):
            case["settings"][name] = options[name]
        yield case


def main(program):
    given = list(cases(random.Random(5)))
    lines = "".join(json.dumps(case) + "\n" for case in given)
    done = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    bad, worst = 0, 0.0
    for case, line in zip(given, done.stdout.splitlines(), strict=True):
        ours = json.loads(line)
        expected = process(case)
        actual = np.zeros_like(expected)
        actual[ours["ids"]] = ours["probabilities"]
        difference = np.abs(actual - expected).max()
        same = difference < 1e-5 and (actual > 0).sum() == (expected > 0).sum()
        worst = max(worst, difference if same else 0)
        if not same:
            bad += 1
            print("differs:", case["settings"], len(case["logits"]), difference,
                  (actual > 0).sum(), (expected > 0).sum())
    print(f"{len(given)} distributions, {bad} differ, largest difference of the others {worst:.1e}")
    return bad


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(min(1, main(sys.argv[1])))
