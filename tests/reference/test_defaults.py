"""What decoders take for keys that a config leaves out is what the config classes of the installed
transformers take, and decoders read no key that these classes and their models do not.

Nothing is computed: config classes need no torch, and of models only the text is read.
"""

import ast
import inspect
import re
import textwrap
import unittest
from dataclasses import MISSING
from pathlib import Path

import yaml
from transformers import CONFIG_MAPPING

from support import ROOT

POLICIES = sorted(
    path for path in (ROOT / "policies/architectures").glob("*.yaml") if ".test." not in path.name
)


def described(path):
    """(defaults by model_type, words of the expressions); None for a policy without a decoder."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.M)
    _, _, decoder = text.partition("\ndecoder:\n")
    if not decoder:
        return None
    block = re.search(r"^  defaults:\n((?:    .*\n)+)", decoder, re.M)
    defaults = yaml.safe_load(textwrap.dedent(block[1])) if block else {}
    expressions = re.sub(r"^  config: .*\n", "", decoder.replace(block[0], "") if block else decoder, flags=re.M)
    # What stands before a colon is a key of the description.
    return defaults, set(re.findall(r"[A-Za-z_]\w*(?!\w|:)", expressions)) - {"model_type"}


DECODERS = {path.stem: found for path in POLICIES if (found := described(path))}


def arguments(config_class):
    """What a class takes for keys that it pops from its arguments and has no field for."""
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(config_class)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 2:
            of_kwargs = getattr(node.func.value, "id", None) == "kwargs"
            if of_kwargs and isinstance(node.args[0], ast.Constant) and isinstance(node.args[1], ast.Constant):
                found[node.args[0].value] = node.args[1].value
    return found


def field(config_class, key):
    """The default of a field; MISSING when the class has none of that name."""
    known = config_class.__dataclass_fields__.get(key)
    if known is None:
        return MISSING
    return known.default if known.default is not MISSING else known.default_factory()


def library(config_class, key):
    """What a class takes for an absent key."""
    theta = config_class.default_theta
    if key == "rope_local_base_freq":
        return theta["local"]
    value = field(config_class, key)
    if value is not MISSING and value is not None:
        return value
    if key == "rope_theta":
        return theta["global"] if isinstance(theta, dict) else theta
    if key in arguments(config_class):
        return arguments(config_class)[key]
    # A field without a value may get one when all are known.
    return getattr(config_class(), key)


def agree(ours, theirs):
    """Whether both are the same; of an object, whether theirs has all of ours and nothing that counts more."""
    if isinstance(ours, dict):
        theirs = theirs if isinstance(theirs, dict) else theirs.to_dict()
        if "model_type" in ours:
            return ours["model_type"] == theirs["model_type"]
        more = theirs.keys() - ours.keys() - {"type", "rope_type", "rope_theta", "max_position_embeddings"}
        return not more and all(agree(value, theirs.get(key)) for key, value in ours.items())
    return type(ours) is type(theirs) and ours == theirs


class Defaults(unittest.TestCase):
    def test_they_are_those_of_the_classes(self):
        compared = 0
        for policy, (defaults, _) in DECODERS.items():
            with self.subTest(policy):
                self.assertTrue(defaults, "has no defaults")
            for model_type, ours in defaults.items():
                for key, value in ours.items():
                    theirs = library(CONFIG_MAPPING[model_type], key)
                    with self.subTest(policy, model_type=model_type, key=key):
                        self.assertTrue(agree(value, theirs), f"{value} here, {theirs} there")
                        compared += 1
        self.assertGreater(compared, 300)

    def test_none_is_missing(self):
        for policy, (defaults, words) in DECODERS.items():
            for model_type, ours in defaults.items():
                config_class = CONFIG_MAPPING[model_type]
                if getattr(config_class, "sub_configs_defaults", None):
                    words_here = {"tie_word_embeddings"}
                else:
                    words_here = words | {"rope_theta"}
                for key in sorted(words_here & config_class.__dataclass_fields__.keys()):
                    if field(config_class, key) is not None and key != "time_step_limit":
                        with self.subTest(policy, model_type=model_type):
                            # An inner class does not decide about this one.
                            inner = key == "tie_word_embeddings" and len(defaults) > 1
                            self.assertTrue(key in ours or inner, f"lacks {key}")

    def test_no_key_is_read_that_the_library_does_not_read(self):
        classes = {name: CONFIG_MAPPING[name] for defaults, _ in DECODERS.values() for name in defaults}
        keys = set().union(*(known.__dataclass_fields__ for known in classes.values()))
        # The library reads this one for every class that turns.
        keys -= {"rope_scaling"}
        keys |= {"partial_rotary_factor", "num_nextn_predict_layers", "rotary_dim"}
        # A published key of GLM-4.7 Flash that tells of a layer that the library passes over by number.
        told = {("glm4_moe_lite", "num_nextn_predict_layers")}
        for policy, (defaults, words) in DECODERS.items():
            read = ""
            for model_type in defaults:
                config = Path(inspect.getfile(classes[model_type]))
                for file in [config, config.with_name(config.name.replace("configuration", "modeling"))]:
                    read += file.read_text()
            for key in sorted(keys & words):
                with self.subTest(policy):
                    known = re.search(rf"\b{key}\b", read) or (policy, key) in told
                    self.assertTrue(known, f"reads {key}")


if __name__ == "__main__":
    unittest.main()
