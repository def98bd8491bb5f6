"""Compares lathe's tokenizers with Python's `tokenizers` (and `sentencepiece`) on a mixed corpus.

Run by hand, with `pip install tokenizers==0.23.2 sentencepiece tiktoken`:

    cargo build --release --example tokenize
    python tests/reference/compare_tokenizers.py target/release/examples/tokenize FOLDER...

A folder holds tokenizer.json, or tokenizer.model (compared with sentencepiece), or tekken.json
(compared with tiktoken). For every text: equal ids, equal decoded text, streamed text equal to
the whole; for random ids: equal decoded text, no piece with half a character. Then MB/s of both.
"""

import base64
import json
import os
import random
import subprocess
import sys
import time

MIXED = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n  \n",
    "Hello, world! It's 3.14159 — isn't it?  Don't  you   think    so?",
    "def f(x):\n    if x > 1:\n\t\treturn [i ** 2 for i in range(x)]  # squares\n    return {}\n",
    "fn main() { let s: &'static str = \"\\u{1F600}\"; println!(\"{s:?}\"); }\r\n",
    "SELECT * FROM t WHERE a='x''y' AND b<>1e-10;--\t\t\tcomment",
    "我能吞下玻璃而不傷身體。東京都は日本の首都です。한국어 문장입니다. 𠮷野家",
    "أنا قادر على أكل الزجاج و هذا لا يؤلمني. ‏שלום עולם‎ — ١٢٣",
    "👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇩🇪🇯🇵 ❤️ ☺︎ 1️⃣ 🤷🏿‍♂️ 👍🏼👍🏽",
    "café cafe\u0301 naïve nai\u0308ve Å A\u030a ﬁ ﬀ ﬃ ½ ² ㎏ Ⅷ é\u0301\u0302\u0303",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Ελληνικά. Русский текст. ไทยไม่มีช่องว่าง हिन्दी में",
    "a" * 300,
    "ab " * 100 + " " * 50 + "\t" * 20 + "end",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0e\x1b[31mred\x1b[0m\x7f\x80\x85\x9f\u2028\u2029\ufeff\u200b\u00ad",
    "x\u00a0y\u2003z\u3000w \u202fv",
    "1234567890 12,345.67 0x1F 1e100 ١٢٣٤ 一二三 १२३",
    "https://example.com/a?b=c&d=%20e#f user@example.com C:\\path\\to\\file",
    "…'’“”«»‹›–—―„‟‚‛!?;:()[]{}<>|\\/@#$%^&*_+-=~`",
    "<s>[INST] hi [/INST] </s><|im_start|>user\nhi<|im_end|><bos><start_of_turn>",
    "▁literal ▁ marks Ġ and <0x41> <0xE2><0x82><0xAC>",
    "\U0010ffff\ue000\ufffd\ufffe 𝒜𝓁𝑔𝑒𝒷𝓇𝒶 𐍈 🜁",
]


def corpus(rng):
    texts = list(MIXED)
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    for folder, _, names in sorted(os.walk(os.path.join(root, "src"))):
        for name in sorted(names):
            if name.endswith(".rs"):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    text = f.read()
                texts.append(text)
                texts.extend(text.split("\n")[::7])
    with open(os.__file__, encoding="utf-8") as f:
        texts.append(f.read())
    pools = [
        [chr(c) for c in range(32, 127)],
        [chr(c) for c in range(0, 0x500)],
        [chr(c) for c in range(0x0590, 0x0700)],
        [chr(c) for c in range(0x3040, 0x3100)] + [chr(c) for c in range(0x4E00, 0x5200)],
        [chr(c) for c in range(0x1F300, 0x1FA00)] + ["\u200d", "\ufe0f", "\U0001f3fd"],
        list(" \t\n\r\u00a0\u3000") + ["a", "1", "."],
        [chr(c) for c in range(0x10000) if not 0xD800 <= c < 0xE000],
        ["e", "a", "o"] + [chr(c) for c in range(0x300, 0x340)],
    ]
    for _ in range(400):
        pool = rng.choice(pools)
        texts.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 60))))
    for _ in range(200):
        texts.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 80))))
    return texts


SPECIALS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()


class Json:
    def __init__(self, folder):
        from tokenizers import Tokenizer

        self.inner = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.hidden = set()
        self.specials = []
        self.bos = None
        config = os.path.join(folder, "tokenizer_config.json")
        if os.path.exists(config):
            with open(config, encoding="utf-8") as f:
                config = json.load(f)
            bos = config.get("bos_token")
            bos = bos["content"] if isinstance(bos, dict) else bos
            if config.get("add_bos_token") and bos:
                # transformers puts it there whatever the post-processor says.
                self.bos = self.inner.token_to_id(bos)
        self.size = self.inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text):
        return self.inner.encode(text, add_special_tokens=False).ids

    def plain(self, text):
        ids = self.inner.encode(text).ids
        return ids if self.bos is None or ids[:1] == [self.bos] else [self.bos, *ids]

    def decode(self, ids):
        return self.inner.decode(ids, skip_special_tokens=False)


class SentencePiece:
    plain = None

    def __init__(self, folder):
        import sentencepiece

        self.inner = sentencepiece.SentencePieceProcessor(
            model_file=os.path.join(folder, "tokenizer.model")
        )
        self.size = self.inner.get_piece_size()
        # SentencePiece neither finds control pieces in a text nor shows them.
        self.hidden = {
            i for i in range(self.size) if self.inner.is_control(i) or self.inner.is_unknown(i)
        }
        self.specials = [self.inner.id_to_piece(i) for i in self.hidden]

    def encode(self, text):
        return self.inner.encode(text)

    def decode(self, ids):
        return self.inner.decode(ids)


class Tekken:
    plain = None

    def __init__(self, folder):
        import tiktoken

        with open(os.path.join(folder, "tekken.json"), encoding="utf-8") as f:
            j = json.load(f)
        c = j["config"]
        self.first = c["default_num_special_tokens"]
        ranks = {
            base64.b64decode(t["token_bytes"]): t["rank"]
            for t in j["vocab"][: c["default_vocab_size"] - self.first]
        }
        self.size = c["default_vocab_size"]
        self.hidden = set()
        self.specials = SPECIALS
        self.inner = tiktoken.Encoding(
            "tekken", pat_str=c["pattern"], mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, text):
        return [i + self.first for i in self.inner.encode(text, disallowed_special=())]

    def decode(self, ids):
        return self.inner.decode([i - self.first for i in ids])


def reference(folder):
    for name, kind in [
        ("tokenizer.json", Json),
        ("tekken.json", Tekken),
        ("tokenizer.model", SentencePiece),
    ]:
        if os.path.exists(os.path.join(folder, name)):
            return kind(folder)
    raise SystemExit(f"{folder} holds no vocabulary")


def drive(program, folder, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(
        [program, folder], input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode().strip()


def compare(program, folder):
    rng = random.Random(1)
    theirs = reference(folder)
    texts = corpus(rng)
    # Special tokens inside a text are found by tokenizers and not by the other libraries; a piece
    # that users defined (the [IMG] of some models) takes a space of its own in sentencepiece only.
    texts = [t for t in texts if not any(special in t for special in theirs.specials)]
    first = getattr(theirs, "first", 0)
    random_ids = [
        [i for _ in range(rng.randrange(1, 30))
         if (i := rng.randrange(first, theirs.size)) not in theirs.hidden]
        for _ in range(400)
    ]
    ours, loaded = drive(program, folder, texts + [{"ids": ids} for ids in random_ids])
    bad = {"ids": 0, "plain": 0, "decoded": 0, "streamed": 0, "random": 0, "pieces": 0, "trip": 0}
    shown = 0

    def differ(kind, *what):
        nonlocal shown
        bad[kind] += 1
        if shown < 8:
            shown += 1
            print("  differs:", kind, *[repr(w)[:160] for w in what])

    trips = 0
    for text, our in zip(texts, ours):
        ids = theirs.encode(text)
        if our["ids"] != ids:
            differ("ids", text, our["ids"][:20], ids[:20])
            continue
        if theirs.plain and our["plain"] != theirs.plain(text):
            differ("plain", text, our["plain"][:5], theirs.plain(text)[:5])
        if our["decoded"] != theirs.decode(ids):
            differ("decoded", text, our["decoded"], theirs.decode(ids))
        if our["streamed"] != our["decoded"]:
            differ("streamed", text, our["streamed"], our["decoded"])
        if our["decoded"] != text:
            trips += 1
            if theirs.decode(ids) == text:
                differ("trip", text, our["decoded"])
        if "\ufffd" not in our["decoded"] and any("\ufffd" in p for p in our["pieces"]):
            differ("pieces", text, our["pieces"])
    for ids, our in zip(random_ids, ours[len(texts) :]):
        if our["decoded"] != theirs.decode(ids):
            differ("random", ids, our["decoded"], theirs.decode(ids))
        if our["streamed"] != our["decoded"]:
            differ("streamed", ids)
    counts = ", ".join(f"{k} {v}" for k, v in bad.items())
    print(f"{folder}: {len(texts)} texts, {len(random_ids)} random; differ: {counts}; "
          f"{trips} texts do not come back the same, in either library; {loaded}")
    big = ("".join(t for t in texts if len(t) > 500) + "".join(MIXED) * 20)[:1_000_000]
    (speed,), _ = drive(program, folder, [{"speed": big}])
    encode, decode = [], []
    for _ in range(5):
        begin = time.perf_counter()
        ids = theirs.encode(big)
        middle = time.perf_counter()
        theirs.decode(ids)
        end = time.perf_counter()
        size = len(big.encode()) / 1e6
        encode.append(size / (middle - begin))
        decode.append(size / (end - middle))
    print(f"  MB/s on {size:.2f} MB, ours / theirs: encode {speed['encode']:.2f} / "
          f"{sorted(encode)[2]:.2f}, decode {speed['decode']:.2f} / {sorted(decode)[2]:.2f}")
    return sum(bad.values())


if __name__ == "__main__":
    program, folders = sys.argv[1], sys.argv[2:]
    if not folders:
        raise SystemExit(__doc__)
    sys.exit(min(1, sum(compare(program, folder) for folder in folders)))
