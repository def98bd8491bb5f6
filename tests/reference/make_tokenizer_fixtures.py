"""Makes tests/fixtures/tokenizer: two small SentencePiece models, and what Python's libraries make
of some texts. Needs sentencepiece 0.2.3 and tokenizers 0.23.2.

    python tests/reference/make_tokenizer_fixtures.py tests/fixtures/tokenizer
"""

import io
import json
import random
import sys

import sentencepiece as spm
from tokenizers import Tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "  two  spaces, three   spaces ",
    "café 東京 👩🏽‍🚀 naïve",
    "x = [i ** 2 for i in range(10)]\n\treturn x\n",
    "",
    " ",
    "أنا 한국어 \x00\x07\x1b",
    "e\u0301 é \ufb01 \u00a0\u3000.",
    "the<sep>fox and<sep>dog",
]
# Control tokens that somebody spells, between those that are meant.
SPELLED = [
    [["<bos>", True], ["the fox<eos> and <pad><bos>", False], ["<eos>", True]],
    [["<eos>", False]],
    [["say ", False], ["<bos>", True], ["<<eos>> <bos", False], ["<eos>", True], ["<eos", False]],
]
SPELLED_IN_PIECES = ["the fox </s> and <s>", "</s>", "<s> x <</s>>"]
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on green hills and return for in range x i def of to that with is was".split()


def train(model_type, **options):
    rng = random.Random(7)
    lines = [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(400)]
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=model_type,
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        user_defined_symbols=["<sep>"],
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def main(folder):
    expected = {}
    for name, model in {
        "bpe": train("bpe", remove_extra_whitespaces=False, character_coverage=1.0),
        "unigram": train("unigram", character_coverage=1.0),
    }.items():
        with open(f"{folder}/{name}.model", "wb") as f:
            f.write(model)
        processor = spm.SentencePieceProcessor(model_proto=model)
        rng = random.Random(3)
        random_ids = [[rng.randrange(3, processor.get_piece_size()) for _ in range(24)] for _ in range(40)]
        expected[name] = {
            "texts": [{"text": t, "ids": processor.encode(t), "decoded": processor.decode(processor.encode(t))} for t in TEXTS],
            "random": [{"ids": ids, "decoded": processor.decode(ids)} for ids in random_ids],
            # SentencePiece itself never takes text for a control token.
            "spelled": [{"parts": [[t, False]], "ids": processor.encode(t)} for t in SPELLED_IN_PIECES],
        }
    tokenizer = Tokenizer.from_file(f"{folder}/byte-level.json")
    with open(f"{folder}/byte-level.json") as f:
        without = Tokenizer.from_str(json.dumps({**json.load(f), "added_tokens": []}))
    ids_of = lambda text, meant: [tokenizer.token_to_id(text)] if meant else without.encode(text).ids
    rng = random.Random(3)
    random_ids = [[rng.randrange(tokenizer.get_vocab_size()) for _ in range(24)] for _ in range(40)]
    expected["byte-level"] = {
        "texts": [{"text": t, "ids": tokenizer.encode(t).ids, "decoded": tokenizer.decode(tokenizer.encode(t).ids, skip_special_tokens=False)} for t in TEXTS],
        "random": [{"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)} for ids in random_ids],
        "spelled": [{"parts": parts, "ids": [id for part in parts for id in ids_of(*part)]} for parts in SPELLED],
    }
    with open(f"{folder}/expected.json", "w") as f:
        json.dump(expected, f, ensure_ascii=True, separators=(",", ":"))


main(sys.argv[1])
