"""Every architecture in the shape of its published config, tiny, through create, export, re-create and
run: the answers are those of transformers, and an export says what its model says.

The models are those of tests/decoder: configs that hold what published ones hold and no more, weights
and references made by transformers.
"""

import json
import math
import struct
import types
import unittest
import unittest.mock
from pathlib import Path

import mlx.core as mx
from mlx_lm.models import rope_utils
from mlx_lm.utils import load_model

from support import ROOT, SCRATCH, lathe, read_safetensors

MODELS = ROOT / "tests/decoder/models"
# Those that mlx-lm computes as transformers does. It has no windows in the older families, none of some
# rotations, and asks for sizes that published configs of others leave out.
# And of gpt_oss and qwen3_next see Differences below.
MLX_LM = [
    "deepseek_v3", "gemma4_moe", "gemma4_shared", "glm4_moe", "glm4_moe_lite", "laguna", "lfm2_moe", "llama",
    "llama_dynamic", "llama_yarn", "ministral3", "qwen2", "qwen3", "qwen3_head", "qwen3_moe",
]
# It comes with its own policy, to be given by --policy-dir.
OWN_POLICY = {"mixtral": ROOT / "tests/decoder"}


def folder(name, tag=""):
    """The model's folder with a vocabulary whose words are t0, t1, …"""
    made = Path(SCRATCH.name) / "architectures" / (name + tag)
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


def exported(name, source):
    """What `lathe export` writes of what `lathe create` makes of a folder."""
    out = Path(SCRATCH.name) / f"export-{name}"
    lathe("create", name, source)
    lathe("export", name, out, "--as", "mlx-lm")
    return out


def loaded(folder):
    model, *_ = load_model(folder)
    model.set_dtype(mx.float32)
    return model


def greedy(model, prompt, count):
    said = []
    while len(said) < count:
        said.append(model(mx.array([prompt + said]))[0, -1].argmax().item())
    return said


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
                model = loaded(exported(f"{name}-mlx", folder(name)))
                self.assertEqual(greedy(model, prompt, len(wanted)), wanted)


class Differences(unittest.TestCase):
    """Where mlx-lm does not compute what transformers does, it is not the export that is wrong: mlx-lm
    answers as transformers once what it does otherwise is undone, and so by the original, where it reads
    that (of gpt_oss only in MXFP4)."""

    def distance(self, name, model):
        _, tensors = read_safetensors(MODELS / f"{name}.ref.safetensors")
        _, shape, raw = tensors["logits"]
        wanted = mx.array(memoryview(raw).cast("f")).reshape(shape)
        prompt, _ = reference(name)
        return mx.abs(model(mx.array([prompt])) - wanted).max().item()

    def test_gpt_oss_rounds_the_range_of_yarn_that_its_config_says_not_to(self):
        out = exported("gpt_oss-mlx", folder("gpt_oss"))
        self.assertIs(json.loads((out / "config.json").read_text())["rope_scaling"]["truncate"], False)
        prompt, wanted = reference("gpt_oss")
        rounding = loaded(out)
        self.assertGreater(self.distance("gpt_oss", rounding), 1e-2)
        # mlx_lm.models.rope_utils reads no `truncate`: it takes floor and ceil of the range always.
        exact = types.SimpleNamespace(**vars(math))
        exact.floor = exact.ceil = lambda number: number
        with unittest.mock.patch.object(rope_utils, "math", exact):
            model = loaded(out)
        self.assertLess(self.distance("gpt_oss", model), 1e-4)
        self.assertEqual(greedy(model, prompt, len(wanted)), wanted)

    def test_qwen3_next_rounds_one_plus_the_weights_of_norms(self):
        source = folder("qwen3_next")
        out = exported("qwen3_next-mlx", source)
        # The original for mlx-lm is the publisher's weights beside a config with what mlx-lm asks for.
        original = folder("qwen3_next", "-original")
        (original / "config.json").write_bytes((out / "config.json").read_bytes())
        prompt, wanted = reference("qwen3_next")
        ids = mx.array([prompt])
        ours, theirs = loaded(out), loaded(original)
        self.assertEqual(mx.abs(ours(ids) - theirs(ids)).max().item(), 0)
        self.assertGreater(self.distance("qwen3_next", ours), 1e-3)
        # mlx_lm.models.qwen3_next adds 1 in the weights' own dtype. In float32 nothing is lost.
        wide = folder("qwen3_next", "-wide")
        weights = mx.load(str(source / "model.safetensors"))
        weights = {name: weight.astype(mx.float32) for name, weight in weights.items()}
        mx.save_safetensors(str(wide / "model.safetensors"), weights, {"format": "pt"})
        model = loaded(exported("qwen3_next-wide", wide))
        self.assertLess(self.distance("qwen3_next", model), 1e-4)
        self.assertEqual(greedy(model, prompt, len(wanted)), wanted)


if __name__ == "__main__":
    unittest.main()
