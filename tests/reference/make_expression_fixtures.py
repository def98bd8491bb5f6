"""Makes tests/fixtures/chat/expressions.json: jinja2's filters and tests, and the methods of Python's
strings, lists and dicts, each in small templates with what jinja2 makes of them, or null where it
refuses.

    python tests/reference/make_expression_fixtures.py tests/fixtures/chat/expressions.json
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare_templates import environment

MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "  Hi <there> & \"you\"\n"},
    {"role": "assistant", "content": "Hello", "n": 1.0, "flag": True, "none": None,
     "list": [1, "a", 2.5, None, {"k": "v"}], "map": {"b": 1, "a": "x"}},
]

# One expression a line; each becomes a template of its own.
EXPRESSIONS = r"""
'a%sb' % 'x'
'a%sb%d' % ('x', 3)
'%5.2f|%-5s|%05d|%x|%c|%%' % (3.14159, 'ab', 42, 255, 'z')
'%(a)s-%(b)s' % {'a': 1, 'b': true}
'%s' % none
'%r' % 'q'
'%s %s' % ('a',)
'%d' % 'a'
'%s' % [1, 'a']
'%i|%u|%o|%X|%e|%g|%G|%E' % (3, 4, 8, 255, 12345.678, 0.00001, 1e20, 1.5)
'%+d|% d|%#x|%-6d|' % (5, 5, 255, 42)
'%*d' % (5, 42)
'%.3s' % 'abcdef'
'a' % ()
'a' % 1
'%s%%' % 5
'%s' % ({'a': 1},)
'%s' % true
'%d' % 3.9
'%d' % true
7 % 3
-7 % 3
7.5 % 2
-7 // 2
7 // 2.0
7 / 2
4 / 2
2 ** 10
2 ** -1
2 ** 0.5
'-' * 3
3 * '-'
[1] * 2
'a' + 1
1 + 'a'
[1] + [2, 3]
(1,) + (2,)
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1]
1 + true
true + true
-true
1 // 0
1 / 0
1 % 0
0.1 + 0.2
1e16
1e15
123456789.123
1e-5
1.0
100.0 * 10
12345678901234567890
99999999999999999999999
10 ** 20
2 ** 63
9223372036854775807 + 1
1_000
0x10
1.5e3
'abc'.index('b')
'abc'.index('z')
'abcabc'.rindex('b')
'abcabc'.index('b', 2)
'abcabc'.find('b', 2)
'abcabc'.find('z')
'abcabc'.rfind('b')
'abcabc'.find('c', 0, 2)
'abcabc'.count('a')
'abcabc'.count('a', 1)
'aaa'.count('aa')
'abc'.count('')
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.split(',', maxsplit=1)
'a,b,c'.split(sep=',')
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.split('')
'abc'.split('x')
''.split()
''.split(',')
'a,b,c'.rsplit(',', 1)
'a,b,c'.rsplit(',', maxsplit=1)
' a b '.rsplit()
'a\nb\r\nc'.splitlines()
'a\nb\r\nc\n'.splitlines(true)
'a\nb'.splitlines(keepends=True)
''.splitlines()
'a\x0bb\x0cc\x1cd\x85e\u2028f'.splitlines()
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('=')
'abc'.rpartition('=')
'abc'.partition('')
'a'.zfill(3)
'-5'.zfill(4)
'+5'.zfill(4)
'abcd'.zfill(2)
'a'.center(5)
'a'.center(4, '*')
'ab'.center(5, '*')
'a'.ljust(3) ~ '|'
'a'.ljust(3, '.')
'a'.rjust(3, '.')
'a'.rjust(3)
'a'.ljust(3, '..')
'aBc'.swapcase()
'ABC'.casefold()
'Straße'.casefold()
'Straße'.upper()
'hello world-foo it\'s'.title()
'hELLO wORLD'.capitalize()
'ǆ'.title()
'ß'.capitalize()
'a\tb'.expandtabs()
'ab\tc\n\td'.expandtabs(4)
'abc'.isalpha()
'a1'.isalnum()
''.isalpha()
'12'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
'½'.isdigit()
'12'.isdecimal()
'12'.isnumeric()
' \t'.isspace()
''.isspace()
'\x1c'.isspace()
'abc'.islower()
'aBc'.islower()
'a1'.islower()
'1'.islower()
'ABC'.isupper()
'A1'.isupper()
'Hello World'.istitle()
'Hello world'.istitle()
''.istitle()
'ab_1'.isidentifier()
'1a'.isidentifier()
'abc'.isascii()
'é'.isascii()
''.isascii()
'a b'.isprintable()
'a\n'.isprintable()
'abc'.startswith('ab')
'abc'.startswith(('x', 'a'))
'abc'.startswith(['x', 'a'])
'abc'.startswith('b', 1)
'abc'.startswith('b', 1, 2)
'abc'.startswith('')
'abc'.endswith('bc')
'abc'.endswith(('x', 'c'))
'abc'.endswith('b', 0, 2)
'pre-x'.removeprefix('pre-')
'x-suf'.removesuffix('-suf')
'x'.removeprefix('y')
'x'.removesuffix('')
'aXbXc'.replace('X', '-')
'aXbXc'.replace('X', '-', 1)
'aXbXc'.replace('X', '-', count=1)
'aXbXc'.replace('X', '-', -1)
'abc'.replace('', '-')
'abc'.replace('b')
'  a '.strip() ~ '|'
'xxaxx'.strip('x')
'xyaxy'.strip('yx')
'xxaxx'.lstrip('x')
'xxaxx'.rstrip('x')
'\x1c a \u00a0'.strip() ~ '|'
'a'.strip(none)
'abc'.strip('')
','.join(['a', 'b'])
','.join('abc')
','.join([1])
','.join([])
','.join({'a': 1, 'b': 2})
'abc'.upper()
'ABC'.lower()
'İ'.lower()
'{} {}'.format('a', 1)
'{0} {1} {0}'.format('a', 'b')
'{x}'.format(x=1)
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:*^7}'.format('ab')
'{:.2f}'.format(3.14159)
'{:05d}'.format(42)
'{:,}'.format(1234567)
'{:x}'.format(255)
'{:.1%}'.format(0.256)
'{!r}'.format('a')
'{{}}'.format()
'{a[0]}'.format(a=[1])
'{}'.format()
'{} {}'.format('a')
'{}'.format(none)
'{}'.format(true)
'{}'.format([1, 'a'])
'{}'.format(1.0)
'{:e}'.format(12345.678)
'{:5}|'.format(3)
'{:+}'.format(3)
'abc'.translate({97: 'x'})
'abc'.encode()
'abc'.nothing()
'abc'.maketrans('a', 'b')
'a{x}'.format_map({'x': 1})
'abc'[0]
'abc'[-1]
'abc'[5]
'abc'[1:]
'abc'[::-1]
'abcdef'[::2]
'abcdef'[-3:-1]
'héllo'[1:3]
[1, 2, 3][::-1]
[1, 2, 3][5]
[1, 2, 3][-1]
[1, 2, 3][0:2]
(1, 2)[0]
(1, 2, 3)[1:]
[1, 2, 3, 2].index(2)
[1, 2, 3].index(9)
[1, 2, 3, 2].count(2)
[1, 2, 3].copy()
[3, 1].append(2)
[3, 1].extend([2])
[3, 1].insert(0, 2)
[3, 1].remove(1)
[3, 1].pop()
[3, 1].reverse()
[3, 1].sort()
[3, 1].clear()
[3, 1].nothing()
(1, 2, 1).count(1)
(1, 2, 1).index(2)
{'a': 1}.get('a')
{'a': 1}.get('b')
{'a': 1}.get('b', 2)
{'a': 1}.get('b', default=2)
{'a': 1}.keys() | list
{'a': 1}.values() | list
{'a': 1}.items() | list
{'a': 1}.copy()
{'a': 1}.pop('a')
{'a': 1}.update({'b': 2})
{'a': 1}.setdefault('b', 2)
{'a': 1}.clear()
{'a': 1}.popitem()
{'a': 1}.keys()
{'a': 1}.values()
{'a': 1}.items()
{'a': 1, 'b': 2}.items() | length
{'items': 1}.items
{'items': 1}['items']
{'get': 1}.get
{1: 'a'}[1]
{true: 'a'}[true]
{'a': 1}['b']
{'a': 1}.b
dict(a=1, b='x')
dict({'a': 1}, b=2)
dict([('a', 1)])
dict.fromkeys(['a', 'b'], 0)
dict.fromkeys(['a'])
{'a': 1} == {'a': 1.0}
[1, 2] == [1, 2]
[1, 2] == (1, 2)
(1, 2) == (1, 2)
[1, 2] < [1, 3]
'a' < 'b'
'a' < 1
1 < 2 < 3
3 > 2 > 2
1 == true
1 == '1'
1 == 1.0
none == false
none < 1
not none
not ''
not []
not {}
not 0.0
not nothing
nothing
nothing.more
nothing['more']
nothing()
nothing + 'a'
'a' + nothing
'a' ~ nothing
nothing == none
nothing is none
nothing in ['a']
'a' in nothing
nothing | length
nothing | list
nothing | join(',')
nothing | default('d')
nothing.x | default('d')
messages[0].x | default('d')
messages[0].x.y | default('d')
none | default('d')
none | default('d', true)
'' | default('d', boolean=true)
0 | d('x', true)
messages[0].nothing
messages[9]
messages[9].role
messages['role']
none.x
none['x']
none | length
none | list
none | join
none | upper
none | trim
none | string
none | int
none | float
none + 'a'
1.x
'x'.y
'x'['y']
true.x
'abc' is iterable
'abc' is sequence
messages is sequence
messages is iterable
messages[0] is iterable
messages[0] is sequence
messages[0] is mapping
1 is iterable
none is iterable
none is sequence
nothing is iterable
(1, 2) is sequence
range(3) is sequence
range(3) is iterable
{'a': 1}.items() is iterable
{'a': 1}.items() is sequence
'a' is string
1 is number
true is number
1.5 is number
true is integer
1 is integer
1.0 is integer
1.0 is float
1 is float
true is boolean
1 is boolean
true is true
1 is true
false is false
0 is false
none is none
nothing is defined
nothing is undefined
messages[0].x is defined
3 is odd
4 is even
4 is divisibleby 2
4 is divisibleby(3)
'abc' is lower
'ABC' is upper
'a1' is lower
'1' is upper
'a' is eq 'a'
'a' is equalto 'a'
1 is ne 2
1 is lt 2
1 is lessthan 2
1 is gt 2
2 is ge 2
2 is le 1
'a' is in 'abc'
1 is in [1]
'a' is in {'a': 1}
1 is sameas 1
none is sameas none
true is sameas true
'x' is callable
dict is callable
range is callable
namespace is callable
'x' is escaped
'upper' is filter
'nope' is filter
'odd' is test
'nope' is test
1 is nope
1 | nope
1 is not odd
'a' is not string
'ab'|list
{'b': 1, 'a': 2}|list
{'b': 1, 'a': 2}|dictsort
{'b': 1, 'a': 2}|dictsort(reverse=true)
{'b': 1, 'a': 2}|dictsort(by='value')
{'b': 1, 'a': 2}|dictsort(false, 'value')
{'B': 1, 'a': 2}|dictsort
{'B': 1, 'a': 2}|dictsort(true)
{'b': 1, 'a': 2}|items|list
nothing|items|list
[1]|items|list
'abc'|reverse
[1, 2, 3]|reverse|list
[1, 2, 3]|reverse
[3, 1, 2]|sort
[3, 1, 2]|sort(reverse=true)
['b', 'A', 'c']|sort
['b', 'A', 'c']|sort(case_sensitive=true)
['b', 'A', 'c']|sort(true, true)
messages|sort(attribute='role')|map(attribute='role')|list
messages|sort(attribute='role,content')|map(attribute='role')|list
[3, 'a']|sort
'cab'|sort
['a', 'b', 'a', 'A']|unique|list
['a', 'b', 'a', 'A']|unique(case_sensitive=true)|list
messages|unique(attribute='role')|list|length
[1, 2, 3]|sum
[1.5, 2]|sum
[[1], [2]]|sum(start=[])
['a', 'b']|sum
[{'x': 1}, {'x': 2}]|sum(attribute='x')
[{'x': 1}, {'x': 2}]|sum('x', 10)
[1, 2, 3]|max
[1, 2, 3]|min
[]|max
['b', 'A']|min
['b', 'A']|max
['b', 'A']|max(case_sensitive=true)
[{'x': 1}, {'x': 2}]|max(attribute='x')
'abc'|first
'abc'|last
[]|first
[]|last
{'a': 1}|first
{'a': 1, 'b': 2}|last
'abc'|length
{'a': 1}|count
5|length
'a b c'|wordcount
'it\'s a-b c_d'|wordcount
''|wordcount
'abcdef'|truncate(4)
'abcdefghijkl'|truncate(8)
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(9, false, '')
'foo bar baz qux'|truncate(9, leeway=0)
'foo bar baz qux'|truncate(length=9, killwords=true, end='…', leeway=0)
'a'|center(5)
'ab'|center(5)
'abc'|center
'a b c d e f'|wordwrap(5)
'abcdefghij'|wordwrap(4)
'abcdefghij'|wordwrap(4, false)
'a-b c'|wordwrap(2)
'a\nb c'|wordwrap(3)
'a b'|wordwrap(1, wrapstring='|')
'<b>x</b>  y'|striptags
'<!-- c -->a &amp; b'|striptags
'a < b > c'|striptags
1234567|filesizeformat
1234567|filesizeformat(true)
1|filesizeformat
0|filesizeformat
1000|filesizeformat
'1500'|filesizeformat
999999|filesizeformat
10**27|filesizeformat
'x y&z=1/ü'|urlencode
{'a': 'x y', 'b': 1}|urlencode
[('a', 1)]|urlencode
'see http://example.com now'|urlize
'a\nb'|indent(4)
'a\nb\n'|indent(2)
'a\nb\n'|indent(2, true)
'a\n\nb'|indent(2)
'a\n\nb'|indent(2, blank=true)
'a\n\nb'|indent(2, first=true, blank=true)
'a\nb'|indent('> ')
'a\nb'|indent('> ', true)
'a\nb'|indent(width=1)
'a\nb'|indent
''|indent
'\n'|indent
'\n'|indent(2, true)
'a\r\nb'|indent(2)
'  a\n'|trim
'xxaxx'|trim('x')
'  a '|trim ~ '|'
1|trim
'aBc'|upper
'aBc'|lower
1|upper
'hello wORLD-foo (bar) it\'s'|title
'hello_x'|title
'hELLO'|capitalize
''|capitalize
'a.b'|replace('.', '-')
'aaa'|replace('a', 'b', 2)
'aaa'|replace('a', 'b', count=1)
1|replace(1, 2)
['a', 1, none]|join(',')
['a', 'b']|join
messages|join(',', attribute='role')
messages|join('-', 'role')
'abc'|join('-')
{'a': 1, 'b': 2}|join(',')
5|join
'12'|int
'x'|int
'x'|int(5)
'x'|int(default=5)
'0x1f'|int(0, 16)
'1f'|int(0, 16)
'0b11'|int(0, 2)
'0x1f'|int
'12.7'|int
'-3'|int
' 12 '|int
'1_000'|int
12.9|int
-12.9|int
true|int
'1e3'|int
none|int(7)
[1]|int
''|int
1e30|int
'x'|float
'x'|float(2.5)
'1.5'|float
'1e3'|float
'nan'|float
'inf'|float
' 1.5 '|float
'1_0.5'|float
3|float
true|float
none|float
'12'|int + 1
2.567|round
2.567|round(1)
2.5|round
3.5|round
-2.5|round
2.1|round(0, 'ceil')
2.9|round(0, 'floor')
2.567|round(2, 'floor')
2.567|round(method='ceil')
25|round(-1)
25|round
42.55|round(1)|int
2|round(1, 'nope')
-1|abs
-1.5|abs
(-1)|abs
'a'|abs
-2|abs + 1
1|string
1.0|string
none|string
true|string
[1, 'a']|string
messages[0]|string
'a'|string
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3]|batch(2, 'x')|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3, 4]|slice(3, 'x')|list
'abcd'|batch(2)|list
[{'r': 1, 'x': 'a'}, {'r': 2, 'x': 'b'}, {'r': 1, 'x': 'c'}]|groupby('r')|list
[{'r': 1}, {'r': 2}]|groupby('r')|map(attribute='grouper')|list
[{'r': 1}, {'r': 2}]|groupby('r')|map(attribute='list')|list
[{'r': 1}, {}]|groupby('r', default=0)|list|length
[{'r': 'b'}, {'r': 'A'}, {'r': 'B'}]|groupby('r')|list|length
[{'r': 'b'}, {'r': 'B'}]|groupby('r', case_sensitive=true)|list|length
messages|map(attribute='role')|list
messages|map(attribute='nothing', default='x')|list
messages|map(attribute='nothing')|list
messages|map('length')|list
messages|map('attr', 'role')|list
['a', 'b']|map('upper')|list
['a', 'b']|map('replace', 'a', 'x')|list
[[1, 2], [3]]|map('length')|list
[[1, 2], [3]]|map('first')|list
[[1, 2], [3]]|map(attribute=0)|list
[{'a': {'b': 1}}]|map(attribute='a.b')|list
messages|map('nope')|list
messages|map
['a', 'b']|map('upper')
[0, 1, none, '']|select|list
[1, 2, 3]|select('odd')|list
[1, 2, 3]|select('gt', 1)|list
[1, 2, 3]|select('>', 1)|list
[1, 2, 3]|select('in', [1, 3])|list
[1, 2, 3]|reject('odd')|list
[0, 1]|reject|list
messages|selectattr('role', 'equalto', 'user')|list|length
messages|selectattr('role', '==', 'user')|list|length
messages|selectattr('role', 'in', ['user', 'system'])|list|length
messages|selectattr('flag')|list|length
messages|selectattr('flag', 'defined')|list|length
messages|rejectattr('flag')|list|length
messages|rejectattr('role', 'ne', 'user')|list|length
messages|selectattr('role', 'equalto', 'user')
messages|selectattr('map.a', 'eq', 'x')|list|length
messages|selectattr
[1, 2]|select('nope')|list
messages[0]|attr('role')
'abc'|attr('upper')
'<a>&"\''|e
'<a>'|escape
'<a>'|safe
'<a>'|forceescape
'<a>'|e|upper
('<a>'|e) + '<b>'
'a%sb%d'|format('x', 3)
'%(a)s'|format(a=1)
'%s'|format
'%s %s'|format('a')
'%.2f'|format(1.2345)
'{}'|format(1)
{'a': 1}|xmlattr
{'a': none, 'b c': '<'}|xmlattr
{'class': 'x'}|xmlattr(false)
[1, {'a': 'b'}]|pprint
'abc'|pprint
['a']|random
[]|random
{'a': 1}|tojson
[1, 2.0, none, true]|tojson
'é<>&"\''|tojson
nothing|tojson
{'b': 1, 'a': 2}|tojson(sort_keys=true)
{'a': [1, 2], 'b': {}}|tojson(indent=2)
{'a': 1}|tojson(2)
{'a': 1}|tojson(indent='  ')
{'a': [1, 2]}|tojson(true, 2)
{'a': [1, 2]}|tojson(ensure_ascii=false, indent=none, separators=(',', ':'))
'é'|tojson(true)
(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{'a': 1}.items()|tojson
messages|map(attribute='role')|tojson
range(3)|tojson
'a\u2028\x7f\x1f'|tojson
1e16|tojson
1e400|tojson
{'a': 1, 'é': 2}|tojson(indent=1, ensure_ascii=true)
'a b'|split
'a,b'|split(',')
'a\nb'|lines
[1, 2]|zip([3, 4])
[1]|chain([2])
'true'|bool
1 if true
1 if false
1 if false else 2
range(5)|list
range(1, 5, 2)|list
range(5, 0, -2)|list
range(0)|list
range(3)
range(1.5)
range('a')
range(5)[1]
range(3)|length
lipsum is defined
cycler is defined
joiner is defined
cycler('a', 'b').next()
joiner(',')()
lipsum(1, false)|length > 0
namespace(a=1).a
namespace({'a': 1}, b=2).b
namespace(_a=1)
debug() is defined
self
loop
caller
varargs
zip([1], [2])
len([1])
str(1)
int('1')
enumerate([1])
isinstance(1, 1)
'a' 'b'
"it's"
'say "x"'
'\u00e9\x41\t|\101\N{DASH}'
'\''
'\q'
'a\
b'
[1, 'a', 2.5, none, true, [1], {'a': 1}, (1,)]
(1,)
()
[]
{}
('a', 'b')
{'a': 'it\'s', 'b': "q\"", 'c': 'both \' and "'}
['a\nb\t\\']
['é', '\x00', '\u200b', '\x7f']
{1: 2, none: 3, true: 4}
[1.0, 1e20, -0.0]
[nothing]
'a' in 'abc'
'' in 'abc'
1 in [1, 2]
'a' in {'a': 1}
1 in 'abc'
'a' not in 'abc'
'a' in 5
none in [none]
true and 'x'
'' or 'd'
0 or none
'a' and nothing
not true and false
(1, 2) ~ ''
messages[0].items()|list
messages[0].role
messages[0]['role']
messages[0].get('role')
messages[-1].n
messages[2].list
messages[2].map
messages[2].map.items()|list
messages|length
messages[::-1]|map(attribute='role')|list
messages[0] == messages[0]
messages.copy()|length
messages.index(messages[1])
messages.count(messages[1])
messages[0].keys()|join(',')
messages[0].values()|join(',')
messages[0].copy()
messages[0] | dictsort | first
messages[1].content.strip().split('\n')[0]
messages[2].n|int
messages[2].flag == true
messages[2].none is none
'abc'|upper|lower|title
'a' if 'b' in 'abc' else 'c'
[1,2,3]|map('string')|join('+')
(1.0).is_integer()
(5).bit_length()
(5).real
(1.5).hex()
strftime_now('%Y') | length
strftime_now('%')
strftime_now('')
strftime_now('%Y-%m-%d %H:%M:%S %j %U %w %y %b %B %a %A %d %e %-d %p %I %%') | length > 40
strftime_now('%x %X %c') | length > 30
strftime_now('%x') == strftime_now('%m/%d/%y')
'a' < 'b' and 2 >= 1.5 and true < 2
[1, 2] < [1, 3]
(messages|length) > 2 and messages | length <= 3
3 > 2 > 1
'\u00e9\x41\t|'
'\101\0'
'\a\b\f\v\r'
'\q\'\"\\'
'%a' % 'é'
'a' in none
'a' in nothing
'a' not in none
'a' in 5
'a' in messages[2].none
'a' in {'a': 1} and 1 not in [2]
1 < 2 == true
none > none
nothing < 1
1 >= nothing
{'a': 1} < {'b': 2}
messages[0].content > 3
'x' if 'a' > 0 else 'y'
not 'a' > 'b'
-1 < -2 or 'b' ~ 'c' > 'b'
{'a': 1 < 2}['a']
[1 < 2, 2 < 1]
'{!s:>5}|{!r:<6}|{!a}'.format('a', 'b', 'é')
'{0!r} {x!r} {0}'.format('a', x=[1, 'b'])
'{!x}'.format('a')
'{:%}|{:.0%}|{:>8.1%}|{:<8.2%}|{:+.1%}'.format(0.5, 0.256, 0.256, 0.5, 0.1)
'{:{w}}|{:>{w}}|'.format('a', 'b', w=4)
'{a.b} {a[b]} {0[1]}'.format([1, 2], a={'b': 'c'})
'{0[5]}'.format([1])
'{:>5}'.format([1])
'{:>5}'.format(none)
'{:>5}|{:d}'.format(true, true)
'{'.format(1)
'}'.format(1)
'{}{'.format(1)
'{{{}}}'.format(1)
'{1}'.format('a')
'{:.3}|{:10.3f}|{:08.2f}|{:,.2f}|{:#x}|{:b}|{:o}|{:c}'.format('abcdef', 3.14159, 3.14159, 1234567.891, 255, 5, 8, 65)
[none, none]|sort
[none]|sort
[3, 1, 2]|sort(reverse=true)
[3, true, 0.5]|sort
['b', 'A', 'a', 'B']|sort
['b', 'A', 'a', 'B']|sort(case_sensitive=true)
messages|sort(attribute='role')|map(attribute='role')|list
messages|sort(attribute='role', reverse=true)|map(attribute='role')|list
messages|sort(attribute='n')|list
[{'a': 1, 'b': 2}, {'a': 1, 'b': 1}, {'a': 0, 'b': 3}]|sort(attribute='a,b')
[[2, 'x'], [1, 'y']]|sort(attribute=0)
[{'a': {'b': 2}}, {'a': {'b': 1}}]|sort(attribute='a.b')
none|sort
nothing|sort
'bca'|sort
['b', 'a', 'B']|groupby(0)|list
messages|groupby('role')|map(attribute='grouper')|list
messages|groupby('role')|map('first')|list
messages|groupby('n', default=0)|map(attribute=0)|list
[{'r': 'a'}, {'r': 'B'}, {'r': 'A'}]|groupby('r')|list
[{'r': 'a'}, {'r': 'B'}, {'r': 'A'}]|groupby('r', case_sensitive=true)|list
messages|join(', ', attribute='role')
[1, none, 'a']|join('-')
[1, 2]|join(3)
nothing|join
'abc'|join(',')
{'a': 1, 'b': 2}|join
messages[0]|attr('nope')
'abc'|attr('nope')
raise_exception('no')
raise_exception()
raise_exception('a', 'b')
""".strip("\n").replace("\\\nb'", "\x00").split("\n")
EXPRESSIONS = [e.replace("\x00", "\\\nb'") for e in EXPRESSIONS]

# Whole templates.
TEMPLATES = [
    "{% for m in messages %}\r\n{{ m.role }}\r\n{% endfor %}\r\nA:\r\n",
    "a\rb\r\nc\n\r{{ 'x\r\ny' }}\r",
    "{% if true %}\r\n  x\r\n{% endif %}\r\n",
    "{% raw %}\r\n{{ x }}\r\n{% endraw %}",
    "{# c\r\n #}\r\nx",
    "  {%- if true -%}\r\n  b\r\n  {%- endif %}\r\n",
    "{% set x = 'a\r\nb' %}{{ x|length }}",
    "{{ messages[0].content }}\n",
    "{{ messages[0].content }}\n\n",
    "{% set l = [] %}{% set _ = l.append('a') %}{{ l|length }}",
    "{% set d = {} %}{% set _ = d.update({'a': 1}) %}{{ d.a }}",
    "{% set d = {'a': 1} %}{% do d.update({'b': 2}) %}",
    "{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}{{ ns.y is defined }}",
    "{% set ns = namespace() %}{% set ns._x = 2 %}",
    "{% set x = {} %}{% set x.a = 1 %}",
    "{% for i in range(3) recursive %}{{ i }}{% endfor %}",
    "{% for i in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if i is iterable %}{{ loop(i) }}{% endif %}{% endfor %}",
    "{% for k, v in messages[0]|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in messages[0] %}{{ k }};{% endfor %}",
    "{% for c in 'abc' %}{{ c }}-{% endfor %}",
    "{% for x in nothing %}{% else %}none{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}",
    "{% for m in messages %}{{ loop }}{% break %}{% endfor %}",
    "{% for i in range(3) %}{% set x = i %}{% endfor %}{{ x is defined }}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% if true %}{% set y = 2 %}{% endif %}{{ y }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% macro f(x, y='d') %}[{{ x }}{{ y }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ f('a', 'b', 'c', z=1) }}",
    "{% macro f(x) %}{{ x is defined }}{% endmacro %}{{ f() }}{{ f.name }}{{ f.arguments }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}",
    "{% macro f() %}<{{ caller(1) }}>{% endmacro %}{% call(n) f() %}x{{ n }}{% endcall %}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(y=2) }}",
    "{% macro f(x) %} a {% endmacro %}{{ f(1)|trim }}{{ f(1)|length }}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% filter indent(2) %}a\nb\n{% endfilter %}|",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set a, b = (1, 2) %}{{ a }}{{ b }}",
    "{% set a = b = 1 %}",
    "{% block x %}a{% endblock %}",
    "{% extends 'x' %}",
    "{% include 'x' %}",
    "{% include 'x' ignore missing %}ok",
    "{% from 'x' import y %}",
    "{% import 'x' as y %}",
    "{% raw %}{{ x }}{% endraw %}",
    "{% autoescape true %}{{ '<a>' }}{% endautoescape %}",
    "{% trans %}x{% endtrans %}",
    "{% nope %}",
    "{{ 'a' }",
    "{% if %}{% endif %}",
    "{% if true %}",
    "{{ 1 + }}",
    "{{ 1 | nope }}",
    "{% if false %}{{ 1 | nope }}{% endif %}",
    "{% if false %}{{ 1 is nope }}{% endif %}",
    "{{ x.y.z }}",
    "{{ nothing.a is defined }}",
    "{{ (nothing).a }}",
    "{# hi #}\n{{ 1 }}{#- x -#}  z",
    "  {% if true %}\n    x\n  {% endif %}\n  {%- if true -%}\n   b  \n{%- endif %}  c\n",
    "a {%+ if true %} b {%+ endif %}",
    "{%- for m in messages -%} {{- m.role -}} {%- endfor -%}",
    "{{ '%s' % messages[0].content }}",
    "{{- 'Cutting Knowledge Date: December 2023\n' }}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "{% if x is not defined and (y is not defined or not y) %}ok{% endif %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first | trim }}",
    "{{ 'x' if messages[0].role == 'system' else raise_exception('no') }}",
    "{% set m = messages[0] %}{{ m['role'] ~ ': ' ~ m.content | trim }}",
    "{% set ns = namespace(n=[]) %}{% for m in messages %}{% set ns.n = ns.n + [m.role] %}{% endfor %}{{ ns.n }}",
    "{% set o = {'a': 1} %}{% set o = dict(o, b=2) %}{{ o }}{{ o.items() | list }}",
    "{% for t in [{'a': {'type': 'x', 'n': 1}}] %}{% for k, v in t.a.items() %}{{ k }}{{ v }}{% if not loop.last %}, {% endif %}{% endfor %}{% endfor %}",
    "{{ messages | tojson(indent=4) }}",
    "{% for x in none %}{% endfor %}",
    "{% for x in nothing %}{{ x }}{% else %}empty{% endfor %}",
    "{% for x in messages[2].none %}{{ x }}{% endfor %}",
    "{% for x in messages[2].none or [] %}{{ x }}{% endfor %}ok",
    "{% for x in 5 %}{% endfor %}",
    "{%- for k, v in {'a': 1}.items() if v > 0 -%} {{ k }}{{ v }} {%- endfor -%}",
    "{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }},{% endfor %}",
    "{% for a in 'xy' %}{{ a }}{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in range(3) if x is not none and x < 2 %}{{ x }}{% endfor %}",
    "{% if messages|length > 2 and not messages[0].role < 'a' %}yes{% elif 1 > 2 %}no{% endif %}",
    "{% if messages[0].content < 3 %}{% endif %}",
    "{% set x = 3 > 2 %}{% set y = x if 2 < 1 else 'n' %}{{ x }}{{ y }}",
    "{% macro f(x, y='d') %}[{{ x }}{{ y }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ f('a', 'b', 'c', z=1) }}{{ f('a') }}{{ f(y=1, x=2) }}",
    "{% macro f() -%} {{ varargs|join('+') }} {%- endmacro %}\n{{ f() }}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% for k, v in kwargs.items() %}{{ k }}={{ v }};{% endfor %}{% endmacro %}{{ f(1, b=2, c=3) }}",
    "{% macro f(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, b=2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f() %}<{{ caller(1) }}{{ kwargs }}>{% endmacro %}{% call(x) f(z=1) %}in{{ x }}{% endcall %}",
    "{%- macro f() -%}\n {{ varargs }}\n{%- endmacro -%}\n\n x {{ f(1) }}",
    "{% macro f(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{% macro g(a) %}{{ f(a, 1, 2) }}{% endmacro %}{{ g('x') }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.role }}{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{{ [1, 2, 3] | sum(start=1) }}{{ loop is defined }}",
]


# What lathe does otherwise: where minijinja reads a template more freely than jinja2, or where only
# Python's own objects would do.
OTHERWISE = set(r"""
-true
'ǆ'.title()
'abc'.translate({97: 'x'})
'abc'.encode()
'abc'.maketrans('a', 'b')
'a{x}'.format_map({'x': 1})
{'a': 1}.keys()
{'a': 1}.values()
{'a': 1}.items()
{'a': 1}.items() is sequence
1 in 'abc'
'see http://example.com now'|urlize
messages|map
messages|selectattr
['a', 'b']|map('upper')
messages|selectattr('role', 'equalto', 'user')
('<a>'|e) + '<b>'
messages|map(attribute='role')|tojson
range(3)
lipsum is defined
lipsum(1, false)|length > 0
namespace({'a': 1}, b=2).b
namespace(_a=1)
self
'\u00e9\x41\t|\101\N{DASH}'
(1.0).is_integer()
(5).bit_length()
(5).real
(1.5).hex()
strftime_now('%')
""".strip("\n").split("\n"))
OTHERWISE |= {
    "'a\\\nb'",
    "{% set ns = namespace() %}{% set ns._x = 2 %}",
    "{% for m in messages %}{{ loop }}{% break %}{% endfor %}",
    "{% macro f(x) %}{{ x is defined }}{% endmacro %}{{ f() }}{{ f.name }}{{ f.arguments }}",
    "{% include 'x' ignore missing %}ok",
    "{% autoescape true %}{{ '<a>' }}{% endautoescape %}",
}


def main(out):
    cases = []
    expressions = ["{{ " + e + " }}" for e in EXPRESSIONS if e not in OTHERWISE]
    for template in expressions + [t for t in TEMPLATES if t not in OTHERWISE]:
        arguments = {"messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            text = environment().from_string(template).render(**arguments)
        except Exception:
            text = None
        if text is not None and " object at 0x" in text:
            continue  # an object of Python's own
        cases.append([template, text])
    with open(out, "w") as f:
        lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
        f.write('{"messages": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(MESSAGES, ensure_ascii=True), lines))


if __name__ == "__main__":
    main(sys.argv[1])
