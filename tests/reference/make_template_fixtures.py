"""Makes tests/fixtures/chat/templates.json: small templates and what jinja2 makes of them.

    python tests/reference/make_template_fixtures.py tests/fixtures/chat/templates.json
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare_templates import TOOLS, environment

MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "  Hi <there> & \"you\"\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "n": 1.0, "flag": True, "none": None,
     "list": [1, "a", 2.5, None, {"k": "v"}]},
    {"role": "user", "content": "東京?"},
]

TEMPLATES = [
    # ChatML
    "{% for message in messages %}\n{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}\n{% endfor %}\n{% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}\n{% endif %}\n",
    "    {%- for m in messages %}\n        {%- if loop.first %}[{{ bos_token }}]{%- endif %}\n  {{- m.role }}:{{ m.content.strip() }};\n    {%- endfor %}\n\n",
    "{{ tools | tojson }}\n{{ tools | tojson(indent=2) }}\n{{ messages[2] | tojson }}{{ messages[1].content|tojson }}",
    "{% for t in tools %}{{ t.function.parameters.properties | tojson(indent=4) }}{{ t['function']['description'] }}{% endfor %}",
    "{% for k, v in messages[2].items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}|{{ messages[2].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
    "{% for m in messages[::-1] %}{{ loop.index0 }}{{ loop.last }}{{ m.role }} {% endfor %}{{ messages[-1].role }} {{ messages[1:3]|length }} {{ messages[:1][0]['role'] }}",
    "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.content %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.last }}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% macro show(m, sep=', ') %}{{ m.role }}{{ sep }}{{ m.content }}{% endmacro %}{{ show(messages[0]) }}{{ show(messages[3], sep=':') }}",
    "{{ messages[0].nothing is defined }} {{ messages[0].content is string }} {{ messages[2].list is iterable }} {{ messages[2] is mapping }} {{ messages[2].none is none }} {{ messages[2].list is string }} {{ messages is sequence }} {{ messages[2].n is number }} {{ messages[2].flag is boolean }} {{ messages[2].flag is true }} {{ tools is not none }}",
    "{{ messages[2].flag }} {{ messages[2].none }} {{ messages[2].n }} {{ messages[2].list }} {{ messages[2].flag|string + '!' }} {{ 'x' ~ messages[2].flag ~ 3 ~ none }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 7 % 3 }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | map(attribute='role') | join(',') }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }} {{ messages|map(attribute='content')|first }}",
    "{{ 'abc'.startswith('ab') }} {{ 'a,b'.split(',') }} {{ 'Hello'.upper() }} {{ 'x y'.title() }} {{ 'aXbXc'.replace('X', '-') }} {{ 'abc'.find('c') }} {{ '{} {}'.format('a', 1) }} {{ 'a.b.c'.rsplit('.', 1) }} {{ 'pre-x'.removeprefix('pre-') }}",
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{{ enable_thinking | default('unset') }}",
    "{{ raise_exception('Conversation roles must alternate') }}",
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported: ' + messages[0].role) }}{% endif %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}{%- generation -%}  x {%- endgeneration %}",
    "{% set content = messages[0].content if messages[0].content is string else '' %}{{ content }}{{ 'yes' if 'brief' in content else 'no' }}{{ 'role' in messages[0] }}{{ 'x' not in messages[0] }}",
    "{% set x = {'a': 1, 'b': [true, none]} %}{{ x }}{{ x.get('a') }}{{ x.get('z', 'none') }}{{ x.keys() | list }}{{ x | tojson }}{{ x|items|list }}{{ x|dictsort }}",
    "a\n  {# comment #}\nb\n  {% if true %}\n  c\n  {% endif %}\nd  \n  {{- 'e' }}\n",
    "{{ [1,2,3]|sum }} {{ [3,1,2]|sort }} {{ range(3)|list }} {{ [1,2,3]|last }} {{ 'abc'|length }} {{ 'a b'|replace(' ', '_') }} {{ ['a','b']|join }} {{ 3|float }} {{ '42'|int + 1 }} {{ 'x'|upper }} {{ 1.5|round|int }}",
    "{{ missing }}{{ missing is defined }}{% for x in missing %}never{% endfor %}{% if not missing %}ok{% endif %}{{ pad_token if pad_token else '' }}",
    "{{ 'it''s' }}{{ \"q\\\"q\" }}{{ '\\u00e9\\t|' }}{{ \"<b>&'\" }}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ loop.previtem.role if not loop.first }}{{ loop.nextitem.role if loop.nextitem is defined }} {% else %}none{% endfor %}",
    "{% set messages = messages[1:] %}{{ messages | length }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{{ (messages[0].role == 'user') != (0 % 2 == 0) }}",
    "{% filter trim %}  {{ messages[0].role }}  {% endfilter %}{% set x %}block {{ 1 }}{% endset %}{{ x }}{{ x|length }}",
    "{{ messages[2].n|tojson }} {{ 1e20|tojson }} {{ 1.5e-7|tojson }} {{ -0.0|tojson }} {{ 100000000000000000|tojson }} {{ {'z': 1, 'a': [], 'm': {}}|tojson(sort_keys=true, indent=1) }} {{ 'é\\x7f'|tojson(ensure_ascii=true) }} {{ [1,2]|tojson(separators=(',', ':')) }}",
]


def main(out):
    cases = []
    for template in TEMPLATES:
        for thinking in [None, False] if "enable_thinking" in template else [None]:
            case = {"template": template, "messages": MESSAGES, "tools": TOOLS, "variables": {"bos_token": "<s>"}}
            arguments = {"messages": MESSAGES, "tools": TOOLS, "bos_token": "<s>", "add_generation_prompt": True}
            if thinking is not None:
                case["thinking"] = thinking
                arguments["enable_thinking"] = thinking
            try:
                case["text"] = environment().from_string(template).render(**arguments)
            except Exception as error:
                if "raise_exception" not in template:
                    raise SystemExit(f"{template}: {error}")
                case["refusal"] = str(error)
            cases.append(case)
    with open(out, "w") as f:
        json.dump(cases, f, ensure_ascii=True, indent=0)


main(sys.argv[1])
