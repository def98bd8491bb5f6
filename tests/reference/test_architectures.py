"""Every architecture in the shape of its published config, tiny, through create, export, re-create and
run: the answers are those of transformers, and an export says what its model says.

The models are those of tests/decoder: configs that hold what published ones hold and no more, weights
and references made by transformers.
"""

import json
import struct
import unittest
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model

from support import ROOT, SCRATCH, lathe, read_safetensors

MODELS = ROOT / "tests/decoder/models"
# Those that mlx-lm computes as transformers does. It has no windows in the older families, none of some
# rotations, and asks for sizes that published configs of others leave out.
MLX_LM = [
    "deepseek_v3", "gemma4_moe", "gemma4_shared", "glm4_moe", "glm4_moe_lite", "laguna", "lfm2_moe", "llama",
    "llama_dynamic", "llama_yarn", "ministral3", "qwen2", "qwen3", "qwen3_head", "qwen3_moe",
]
# It comes with its own policy, to be given by --policy-dir.
OWN_POLICY = {"mixtral": ROOT / "tests/decoder"}


def folder(name):
    """The model's folder with a vocabulary whose words are t0, t1, …"""
    made = Path(SCRATCH.name) / "architectures" / name
    made.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        (made / file).write_bytes((MODELS / name / file).read_bytes())
    words = {f"t{number}": number for number in range(512)}
    tokenizer = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return made


def reference(name):
    """The prompt's ids and its greedy continuation by transformers, which goes on after an end token."""
    _, tensors = read_safetensors(MODELS / f"{name}.ref.safetensors")
    ids = lambda key: [number for (number,) in struct.iter_unpack("<i", tensors[key][2])]
    ends = json.loads((MODELS / name / "config.json").read_text()).get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    greedy = ids("greedy")
    stop = next((at for at, number in enumerate(greedy) if number in ends), len(greedy))
    return ids("input_ids"), greedy[:stop]


def answer(model, prompt):
    words = " ".join(f"t{number}" for number in prompt)
    said = lathe("run", model, "--raw", words, "-n", 16, "--temperature", 0, "-o", "json")
    return json.loads(said)["tokens"]


class Architectures(unittest.TestCase):
    def round_trip(self, name, request):
        """The answers of a model, and of what is created from its export."""
        prompt, wanted = reference(name)
        tag = "-".join([name, *request[1:]])
        lathe("create", tag, folder(name), *request)
        first = answer(tag, prompt)
        exported = Path(SCRATCH.name) / f"export-{tag}"
        lathe("export", tag, exported, "--as", "mlx-lm")
        lathe("create", f"{tag}-again", exported)
        return wanted, first, answer(f"{tag}-again", prompt)

    def names(self):
        return sorted(path.name for path in MODELS.iterdir() if path.is_dir() and path.name not in OWN_POLICY)

    def test_floats_answer_as_transformers_before_and_after(self):
        self.assertGreater(len(self.names()), 24)
        for name in self.names():
            with self.subTest(name):
                wanted, first, again = self.round_trip(name, [])
                self.assertEqual(first, wanted)
                self.assertEqual(again, wanted)

    def test_an_export_of_quantized_weights_says_what_its_model_says(self):
        for name in self.names():
            with self.subTest(name):
                _, first, again = self.round_trip(name, ["-q", "int8-g32"])
                self.assertEqual(again, first)

    def test_mlx_lm_answers_as_transformers_by_what_an_export_says(self):
        for name in MLX_LM:
            with self.subTest(name):
                prompt, wanted = reference(name)
                lathe("create", f"{name}-mlx", folder(name))
                exported = Path(SCRATCH.name) / f"export-{name}-mlx"
                lathe("export", f"{name}-mlx", exported, "--as", "mlx-lm")
                model, *_ = load_model(exported)
                model.set_dtype(mx.float32)
                answered = []
                while len(answered) < len(wanted):
                    logits = model(mx.array([prompt + answered]))
                    answered.append(logits[0, -1].argmax().item())
                self.assertEqual(answered, wanted)


if __name__ == "__main__":
    unittest.main()
