"""Published clients, pointed at `lathe serve` as their makers say: `make clients`.

Each has an answer streamed and one that is not, which must be the same text, and a conversation in which a
tool was called before. The model is SmolLM2 with 4 bits, so what it says is of no interest.

$LATHE overrules which binary is run, $LATHE_MODEL which folder the model is made from.
"""

import json
import os
import subprocess
import tempfile
import unittest
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("LATHE_MODEL", ROOT / "models/SmolLM2-135M-Instruct"))
LATHE = os.environ.get("LATHE") or ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/lathe"
NAME = "smol"
ASK = "Name a colour."
MOST = 12

# Or it fetches a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

WEATHER = {
    "name": "weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def setUpModule():
    global scratch, server, url
    scratch = tempfile.TemporaryDirectory(prefix="lathe-clients-")
    store = ["--store", f"{scratch.name}/store"]
    subprocess.run([LATHE, "create", NAME, MODEL, "-q", "int4", "--no-smoke", *store], check=True, capture_output=True)
    command = [LATHE, "serve", "--listen", "127.0.0.1:0", *store]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = "http://" + server.stderr.readline().strip().rsplit("http://", 1)[1]


def tearDownModule():
    server.terminate()
    server.wait(60)
    server.stderr.close()
    scratch.cleanup()


class OpenAi(unittest.TestCase):
    def setUp(self):
        import openai

        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_models(self):
        listed = [model.id for model in self.client.models.list()]
        self.assertEqual(listed, [f"{NAME}:latest"])
        self.assertEqual(self.client.models.retrieve(NAME).object, "model")

    def test_chat(self):
        ask = dict(model=NAME, messages=[{"role": "user", "content": ASK}], max_tokens=MOST, temperature=0)
        whole = self.client.chat.completions.create(**ask)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        text, usage = "", None
        for chunk in self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_stream_helper(self):
        messages = [{"role": "user", "content": ASK}]
        with self.client.chat.completions.stream(model=NAME, messages=messages, stop=[" ", "."]) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            self.assertEqual(stream.get_final_completion().choices[0].message.content, text)

    def test_tools(self):
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}}
        messages = [
            {"role": "user", "content": "Weather in Rome?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ]
        reply = self.client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=MOST, parallel_tool_calls=False,
            tools=[{"type": "function", "function": WEATHER}],
        )
        self.assertIn(reply.choices[0].finish_reason, ["stop", "length", "tool_calls"])

    def test_completions(self):
        ask = dict(model=NAME, prompt="Once upon a time", max_tokens=MOST, temperature=0)
        whole = self.client.completions.create(**ask).choices[0].text
        streamed = self.client.completions.create(**ask, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed if chunk.choices), whole)

    def test_responses(self):
        ask = dict(model=NAME, input=ASK, instructions="Be brief.", max_output_tokens=4, temperature=0)
        whole = self.client.responses.create(**ask)
        self.assertEqual((whole.status, whole.object), ("incomplete", "response"))
        self.assertEqual(whole.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(whole.usage.output_tokens, 4)
        events = list(self.client.responses.create(**ask, stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(events[0].type, "response.created")
        ends = [e for e in events if e.type in ("response.completed", "response.incomplete", "response.failed")]
        self.assertEqual(ends, events[-1:])
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(ends[0].response.output_text, text)

    def test_responses_helper(self):
        with self.client.responses.stream(model=NAME, input=ASK, instructions="Be brief.", temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            self.assertEqual(stream.get_final_response().output_text, text)

    def test_responses_with_tools(self):
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather in Rome?"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"place": "Rome"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ]
        tools = [{"type": "function", **WEATHER}, {"type": "custom", "name": "patch", "description": "Edits."}]
        reply = self.client.responses.create(model=NAME, input=items, tools=tools, max_output_tokens=MOST, store=False)
        self.assertIn(reply.status, ["completed", "incomplete"])

    def test_what_is_refused_is_named(self):
        import openai

        for field, value in [("previous_response_id", "resp_1"), ("background", True)]:
            with self.assertRaises(openai.BadRequestError) as refused:
                self.client.responses.create(model=NAME, input=ASK, **{field: value})
            self.assertEqual(refused.exception.param, field)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": ASK}])


class Ollama(unittest.TestCase):
    def setUp(self):
        import ollama

        self.client = ollama.Client(host=url)

    def test_store(self):
        self.assertEqual([model.model for model in self.client.list().models], [f"{NAME}:latest"])
        shown = self.client.show(NAME)
        self.assertIn("completion", shown.capabilities)
        self.assertTrue(any(key.endswith(".context_length") for key in shown.modelinfo))
        made = self.client.create("pirate", from_=NAME, system="You are a pirate.", parameters={"temperature": 0.1})
        self.assertEqual(made.status, "success")
        self.assertIn("temperature", self.client.show("pirate").parameters)
        self.client.delete("pirate")
        self.client.copy(NAME, "other")
        self.assertEqual(len(self.client.list().models), 2)
        self.client.delete("other")
        self.assertEqual(len(self.client.list().models), 1)

    def test_chat(self):
        ask = dict(model=NAME, messages=[{"role": "user", "content": ASK}], options={"num_predict": MOST, "temperature": 0})
        whole = self.client.chat(**ask)
        self.assertTrue(whole.done and 0 < whole.eval_count <= MOST and whole.prompt_eval_count > 0)
        parts = list(self.client.chat(**ask, stream=True))
        self.assertEqual("".join(part.message.content or "" for part in parts), whole.message.content)
        self.assertEqual([model.model for model in self.client.ps().models], [f"{NAME}:latest"])

    def test_generate(self):
        ask = dict(model=NAME, prompt=ASK, options={"num_predict": MOST, "temperature": 0})
        whole = self.client.generate(**ask)
        parts = self.client.generate(**ask, stream=True)
        self.assertEqual("".join(part.response for part in parts), whole.response)

    def test_tools(self):
        call = {"function": {"name": "weather", "arguments": {"place": "Rome"}}}
        messages = [
            {"role": "user", "content": "Weather in Rome?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": "sunny"},
        ]
        tools = [{"type": "function", "function": WEATHER}]
        reply = self.client.chat(model=NAME, messages=messages, tools=tools, options={"num_predict": MOST})
        self.assertEqual(reply.message.role, "assistant")


class Anthropic(unittest.TestCase):
    def setUp(self):
        import anthropic

        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_messages(self):
        ask = dict(model=NAME, messages=[{"role": "user", "content": ASK}], max_tokens=4, extra_body={"temperature": 0})
        whole = self.client.messages.create(**ask)
        self.assertEqual((whole.stop_reason, whole.usage.output_tokens), ("max_tokens", 4))
        with self.client.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.usage.output_tokens, 4)

    def test_tools(self):
        messages = [
            {"role": "user", "content": "Weather in Rome?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"place": "Rome"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
        ]
        tools = [{"name": "weather", "description": "The weather.", "input_schema": WEATHER["parameters"]}]
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        reply = self.client.messages.create(model=NAME, messages=messages, tools=tools, tool_choice=choice, max_tokens=MOST)
        self.assertEqual(reply.role, "assistant")
        counted = self.client.messages.count_tokens(model=NAME, messages=messages, tools=tools)
        self.assertEqual(counted.input_tokens, reply.usage.input_tokens + reply.usage.cache_read_input_tokens)


class Frameworks(unittest.TestCase):
    def test_litellm(self):
        import litellm

        messages = [{"role": "user", "content": ASK}]
        for model, base in [(f"openai/{NAME}", f"{url}/v1"), (f"ollama_chat/{NAME}", url)]:
            ask = dict(model=model, api_base=base, api_key="none", messages=messages, max_tokens=MOST, temperature=0)
            whole = litellm.completion(**ask).choices[0].message.content
            parts = litellm.completion(**ask, stream=True)
            self.assertEqual("".join(part.choices[0].delta.content or "" for part in parts), whole, model)

    def test_langchain(self):
        from langchain_ollama import ChatOllama
        from langchain_openai import ChatOpenAI

        for model in [
            ChatOpenAI(model=NAME, base_url=f"{url}/v1", api_key="none", max_tokens=MOST, temperature=0),
            ChatOllama(model=NAME, base_url=url, num_predict=MOST, temperature=0),
        ]:
            whole = model.invoke(ASK).content
            self.assertTrue(whole)
            self.assertEqual("".join(part.content for part in model.stream(ASK)), whole)
            tooled = model.bind_tools([{"type": "function", "function": WEATHER}])
            self.assertTrue(tooled.invoke("Weather in Rome?").response_metadata)

    def test_pydantic_ai(self):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        for kind in [OpenAIChatModel, OpenAIResponsesModel]:
            agent = Agent(kind(NAME, provider=provider), model_settings={"max_tokens": MOST, "temperature": 0})
            self.assertTrue(agent.run_sync(ASK).output)


class Raw(unittest.TestCase):
    def test_every_event_of_responses_has_its_type_inside(self):
        body = json.dumps({"model": NAME, "input": ASK, "stream": True, "max_output_tokens": 4}).encode()
        request = urllib.request.Request(f"{url}/v1/responses", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            events = reply.read().decode().strip().split("\n\n")
        for event in events:
            name, data = event.split("\n")
            self.assertEqual(json.loads(data.removeprefix("data: "))["type"], name.removeprefix("event: "))


if __name__ == "__main__":
    unittest.main()
