"""What `lathe export --as mlx-lm` writes is a model that the real mlx_lm loads, and its logits are
those of the weights in lathe's blobs."""

import re
import unittest
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from support import FORMATS, MODEL, SCRATCH, array, blobs, created, lathe, packing

PROMPTS = [
    "What is the capital of France, and what is it known for?",
    "Explain in two sentences why the sky is blue.",
    "Write a short note that invites a friend to dinner.",
]

# Words without which no English is written.
COMMON = set(
    "the a an of to in is are and or that it for on with as was be by at from this have has not you "
    "your we our i my can will would which when what known due because more".split()
)


def exported(format):
    """The folder and (model, tokenizer) that mlx_lm makes of it, computing in float32."""
    folder = Path(SCRATCH.name) / f"export-{format}"
    if not folder.exists():
        lathe("export", created(format), folder, "--as", "mlx-lm")
    model, tokenizer = mlx_lm.load(str(folder))
    model.set_dtype(mx.float32)
    return model, tokenizer


def dequantized(format):
    """The model with float32 weights, taken from the blobs."""
    weights = {}
    for _, metadata, tensors in blobs(created(format)):
        for name, entry in tensors.items():
            if name.endswith((".scale", ".bias", ".global_scale")):
                continue
            values = array(*entry)
            if f"{name}.scale" in tensors:
                mode, bits, group = packing(metadata, name)
                scales = array(*tensors[f"{name}.scale"])
                biases = tensors.get(f"{name}.bias")
                biases = array(*biases).astype(mx.float32) if biases else None
                scales = scales.astype(mx.float32) if mode == "affine" else scales
                options = {"group_size": group, "bits": bits, "mode": mode, "dtype": mx.float32}
                values = mx.dequantize(values, scales, biases, **options)
            weights[name] = values.astype(mx.float32)
    model, _ = load_model(MODEL, lazy=True)
    model.load_weights(list(weights.items()), strict=True)
    return model


class Export(unittest.TestCase):
    def test_greedy_continuations_are_english(self):
        model, tokenizer = exported("int4")
        for prompt in PROMPTS:
            message = [{"role": "user", "content": prompt}]
            ids = tokenizer.apply_chat_template(message, add_generation_prompt=True)
            text = mlx_lm.generate(model, tokenizer, ids, max_tokens=32)
            print(f"\n  > {prompt}\n    {text!r}")
            words = re.findall(r"[a-z']+", text.lower())
            self.assertGreater(len(words), 10)
            letters = sum(c.isascii() and (c.isalpha() or c in " ,.'\n") for c in text)
            self.assertGreater(letters / len(text), 0.9)
            self.assertGreater(sum(word in COMMON for word in words) / len(words), 0.2)
            triples = list(zip(words, words[1:], words[2:]))
            self.assertGreater(len(set(triples)) / len(triples), 0.7, "it repeats itself")

    def check_logits(self, format):
        model, tokenizer = exported(format)
        layers = [m for _, m in model.named_modules() if "Quantized" in type(m).__name__]
        self.assertGreater(len(layers), 100, "loaded as a quantized model")
        plain = dequantized(format)
        self.assertFalse([n for n, _ in tree_flatten(plain.parameters()) if n.endswith("scales")])
        ids = mx.array([tokenizer.encode("The lathe is a machine tool that rotates a workpiece.")])
        found, expected = model(ids), plain(ids)
        self.assertEqual((found.dtype, expected.dtype), (mx.float32, mx.float32))
        error = mx.linalg.norm(found - expected) / mx.linalg.norm(expected)
        worst = mx.abs(found - expected).max() / mx.abs(expected).max()
        print(f"\n  {format}: relative error {error.item():.1e}, worst {worst.item():.1e}")
        self.assertLess(worst.item(), 1e-2)
        self.assertLess(error.item(), 1e-2)


for format in FORMATS:
    run = lambda self, format=format: self.check_logits(format)
    setattr(Export, f"test_logits_{format}", run)

if __name__ == "__main__":
    unittest.main()
