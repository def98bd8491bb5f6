"""Compares lathe's rendering of chat templates with jinja2, set up as transformers does.

Run by hand, with `pip install jinja2`:

    cargo build --release --example chat
    python tests/reference/compare_templates.py target/release/examples/chat TEMPLATE...

A template is a .jinja file or a tokenizer_config.json. Each is rendered with several
conversations; both must give the same text, or both refuse.
"""

import json
import subprocess
import sys
from datetime import datetime

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(lineno)


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            self, attributes = args[0], dict(*args[1:], **kwargs)
            for name in attributes:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(name)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.now().strftime(f)
    env.globals["dict"] = Dict()
    env.globals["namespace"] = Namespace
    return env


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"here\" – ünïcode 東京",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City's name"},
                    "days": {"type": "integer", "default": 1, "enum": [1, 2.5, 1e20, None, True]},
                    "units": {"type": ["string", "null"], "items": {"type": "object", "properties": {}}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"type": "function", "id": "call_1234x", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "x": [1.0, {"a": None, "b": False}]}}}
CALL9 = {**CALL, "id": "abcdefghi"}


def conversations():
    user = {"role": "user", "content": "Hi there!  \n"}
    reply = {"role": "assistant", "content": "Hello."}
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}
    reasoned = {"role": "assistant", "content": "Hello.", "reasoning_content": "hm, a <tag>\n", "reasoning": "r", "thinking": "t"}
    again = {"role": "user", "content": "And  now? {{ x }} {% y %} <b>&"}
    system = {"role": "system", "content": "Be brief."}
    parts = {"role": "user", "content": [{"type": "text", "text": "What is this? "}, {"type": "text", "text": "And that?"}]}
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look"}]}
    for messages in (
        [user],
        [system, user],
        [user, reply, again],
        [system, user, reply, again],
        [system, user, thought, again],
        [user, reasoned, again],
        [user, user],
        [reply],
        [],
        [parts],
        [{"role": "system", "content": [{"type": "text", "text": "Sys"}]}, parts, reply],
        [image],
        [{"role": "developer", "content": "Dev"}, user],
    ):
        for prompt in (True, False):
            yield {"messages": messages, "add_generation_prompt": prompt}
    for thinking in (True, False):
        yield {"messages": [system, user, thought, again], "add_generation_prompt": True, "thinking": thinking}
        yield {"messages": [user], "add_generation_prompt": True, "thinking": thinking}
    for call in (CALL, CALL9):
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        talked = {"role": "assistant", "content": "Let me see.", "reasoning_content": "tool!", "tool_calls": [call, call]}
        quiet = {"role": "assistant", "tool_calls": [call]}
        none = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "name": "get_weather", "tool_call_id": call["id"], "content": "{\"t\": 21}"}
        for messages in (
            [user],
            [system, user, called, result],
            [user, talked, result, result, again],
            [user, called, result, reply, again],
            [user, quiet, result],
            [user, none, result],
        ):
            yield {"messages": messages, "tools": TOOLS, "add_generation_prompt": True}
    text = {**CALL9, "function": {"name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}
    yield {"messages": [user, {"role": "assistant", "content": "", "tool_calls": [text]}], "tools": TOOLS, "add_generation_prompt": True}


def templates(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    if not path.endswith(".json"):
        return [(path, text, variables)]
    config = json.loads(text)
    variables = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        if isinstance(token, dict):
            token = token["content"]
        if token is not None:
            variables[name] = token
    template = config.get("chat_template")
    if template is None:
        return []
    if isinstance(template, str):
        return [(path, template, variables)]
    return [(f"{path}:{t['name']}", t["template"], variables) for t in template]


def compare(program, path):
    bad = 0
    for name, text, variables in templates(path):
        compiled = environment().from_string(text)
        cases = [{**c, "template": text, "variables": variables} for c in conversations()]
        lines = "".join(json.dumps(c) + "\n" for c in cases)
        done = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE, check=True)
        refused = differ = 0
        for case, line in zip(cases, done.stdout.splitlines()):
            ours = json.loads(line)
            arguments = {**variables, "messages": case["messages"], "tools": case.get("tools"),
                         "documents": None, "add_generation_prompt": case["add_generation_prompt"]}
            if "thinking" in case:
                arguments["enable_thinking"] = arguments["thinking"] = case["thinking"]
            try:
                theirs = compiled.render(**arguments)
            except Exception as error:
                refused += 1
                if "error" not in ours:
                    differ += 1
                    print("  only jinja2 refuses:", type(error).__name__, error, ours["text"][-200:])
                continue
            if ours.get("text") != theirs:
                differ += 1
                print("  ours:  ", repr(ours)[:900], "\n  theirs:", repr(theirs)[:900])
        print(f"{name}: {len(cases)} conversations, {refused} refused, {differ} differ")
        bad += differ
    return bad


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    sys.exit(min(1, sum(compare(sys.argv[1], path) for path in sys.argv[2:])))
