"""Templates that attack: Python's internals, what they are given, time, memory, the parser and the compiler."""

# ruff: noqa: UP031

from __future__ import annotations

__all__ = ["BOUNDED", "GROWN", "REFUSED", "grown"]

BIG = "('a' * 1000000)"
DOUBLE = "{% set ns = namespace(x=SEED) %}{% for i in range(COUNT) %}{% set ns.x = STEP %}{% endfor %}"


def doubling(step: str, seed: str = "'a'", n: int = 64) -> str:
    """A template that makes a value anew n times, mostly twice as large."""
    return DOUBLE.replace("SEED", seed).replace("STEP", step).replace("COUNT", str(n))


# -- must end as a TemplateError --------------------------------------------------------------------------------------

REFUSED = {
    # Python's internals
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "class by format_map": "{{ '{m.__class__.__init__.__globals__}'.format_map({'m': messages}) }}",
    "class by map": "{{ ['']|map(attribute='__class__')|map(attribute='__mro__')|list|first|first }}",
    "globals": "{{ raise_exception.__globals__ }}{{ strftime_now.__func__ }}{{ x() }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__['os'] }}",
    "self": "{{ self.__init__.__globals__ }}",
    "import": "{% import 'os' as os %}",
    # changing what it is given
    "append": "{% set _ = messages.append(1) %}",
    "pop": "{{ messages.pop() }}",
    "update": "{{ messages[0].update({'content': 'x'}) }}",
    "inner list": "{{ messages[0].tags.append('b') }}",
    "clear": "{{ messages[0].clear() }}",
    # time
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that write": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "macro for ever": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macro like a tree": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "products": "{% set ns = namespace(x=10) %}{% for i in range(64) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "digits": "{{ ('9' * 4000000) | int(base=16) // 7 }}",
    "sum of lists": "{{ ([[1] * 9] * 100000) | sum(start=[]) | length }}",
    # memory
    "multiply": "{{ 'a' * 10 ** 9 }}",
    "multiply from the left": "{{ 10 ** 9 * 'a' }}",
    "multiply a list": "{{ ([1] * 10 ** 9) | length }}",
    "doubling with +": doubling("ns.x + ns.x"),
    "doubling with ~": doubling("ns.x ~ ns.x"),
    "doubling lists": doubling("[ns.x, ns.x]", "[1]") + "{{ ns.x }}",
    "nested lists as json": doubling("[ns.x, ns.x]", "[1]") + "{{ ns.x | tojson }}",
    "a namespace as text": "{% set ns = namespace(x='a' * 4000000) %}{% set ns.y = [ns.x, ns.x, ns.x, ns.x] %}{{ ns }}",
    "doubling by macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubling("m(ns.x)"),
    "doubling by block": doubling("y").replace("{% set ns.x", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x"),
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 9) }}",
    "replace": "{{ ('a' * 4000000).replace('', 'b' * 4000000) }}",
    "replace filter": "{{ ('a' * 4000000) | replace('', 'b' * 4000000) }}",
    "join": "{{ ('b' * 100000).join(range(100000) | map('string')) }}",
    "join filter": "{{ range(100000) | join('b' * 100000) }}",
    "percent": "{{ '%0999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent filter": "{{ '%0999999999d' | format(1) }}",
    "percent many": "{{ ('%(a)s' * 800000) % {'a': 'a' * 1000000} }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format nested": "{{ '{:>{}}'.format(1, 999999999) }}",
    "format many": "{{ ('{0}' * 1000000).format('a' * 1000000) }}",
    "json indent": "{{ [1] | tojson(indent=10 ** 9) }}",
    "json deep": "{% set ns = namespace(x=[1]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{{ ([ns.x] * 5000) | tojson(indent=32) }}",
    "strftime": "{{ strftime_now('%999999999Y') }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list | length }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000000}) }}",
    "many": doubling("ns.x + ['a' * 4000000]", "[]"),
    "lipsum": "{{ lipsum(10 ** 6) }}",
    "output": "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    # refusing
    "raise": "{{ raise_exception('no') }}",
    # the same and more, by other ways
    "dag compare": doubling('[ns.x, ns.x]','[1]',30)+doubling('[ns.y, ns.y]','[1]',30)
    .replace('ns.x','ns.y').replace('ns = namespace(x','ns2 = namespace(x')+"{{ ns.x == ns.y }}",
    "dag compare small": "{% set ns=namespace(a=[1],b=[1]) %}{% for i in range(17) %}{% set ns.a=[ns.a,ns.a] %}"
    "{% set ns.b=[ns.b,ns.b] %}{% endfor %}{% for i in range(99999) %}{{ ns.a == ns.b }}{% endfor %}",
    "tuple hash dag": doubling('(ns.x, ns.x)','(1,)',40)+"{{ {ns.x: 1}|length }}",
    "tuple deep hash": doubling('(ns.x,)','(1,)',99999)+"{{ {ns.x: 1}|length }}",
    "list deep": doubling('[ns.x]','[1]',99999)+"{{ ns.x }}",
    "dict deep": doubling("{'a':ns.x}",'1',99999)+"{{ ns.x|tojson }}",
    "ns chain": doubling("namespace(x=ns.x)",'1',99999)+"{{ ns.x }}",
    "ns dag": doubling("namespace(x=[ns.x,ns.x])",'1',64)+"{{ ns.x }}",
    "ns in list": "{% set ns=namespace() %}{% set ns.x=ns %}{{ [ns] }}",
    "ns self": "{% set ns=namespace() %}{% set ns.x=ns %}{{ ns }}",
    "gen chain": doubling("ns.x|map('upper')","['a']",99999)+"{{ ns.x|list }}",
    "gen chain dealloc": doubling("ns.x|map('upper')","['a']",99999)+"ok",
    "reverse chain": doubling("ns.x|reverse","['a']",99999)+"ok{{ ns.x|list }}",
    "select chain": doubling("ns.x|select","['a']",99999)+"{{ ns.x|list }}",
    "macro closure call": "{% set ns=namespace(f='x') %}{% for i in range(9999) %}{% set p=ns.f %}{% macro m() %}{{ p() }}"
    "{% endmacro %}{% set ns.f=m %}{% endfor %}{{ ns.f() }}",
    "slice filter": "{{ [1]|slice(10**9)|list|length }}",
    "batch kw": "{{ [1]|batch(linecount=10**9, fill_with='x')|list|length }}",
    "replace kw": "{{ %s|replace(old='', new=%s) }}"%(BIG,BIG),
    "replace method3": "{{ %s.replace('', %s, 1000000) }}"%(BIG,BIG),
    "center kw": "{{ 'a'|center(width=10**9) }}",
    "indent kw": "{{ 'a'|indent(width=10**9, first=True) }}",
    "indent str": "{{ ('a\n'*100000)|indent('x'*100000) }}",
    "join kw": "{{ range(100000)|join(d='b'*100000) }}",
    "strip chars": "{{ %s.strip('b'*999999 ~ 'a') }}"%BIG,
    "trim chars": "{{ %s|trim('b'*999999 ~ 'a') }}"%BIG,
    "rstrip chars": "{{ %s.rstrip('b'*999999 ~ 'a') }}"%BIG,
    "rfind": "{{ %s.rfind('b' ~ 'a'*500000) }}"%BIG,
    "rindex": "{{ %s.rindex('b' ~ 'a'*500000) }}"%BIG,
    "rsplit": "{{ %s.rsplit('b' ~ 'a'*500000)|length }}"%BIG,
    "rpartition": "{{ %s.rpartition('b' ~ 'a'*500000)|length }}"%BIG,
    "in loop": "{%% set a=%s %%}{%% set b='a'*500000 ~ 'b' %%}"
    "{%% for i in range(99999) %%}{%% if b in a %%}x{%% endif %%}{%% endfor %%}"%BIG,
    "split big": "{{ %s.split('a')|length }}"%BIG,
    "split many": "{%% set ns=namespace(x=[]) %%}{%% for i in range(999) %%}"
    "{%% set ns.x=ns.x+[('a '*500000).split()] %%}{%% endfor %%}",
    "splitlines": "{{ ('\n'*1000000).splitlines()|length }}",
    "format many 9999": "{{ ('{:>9999}'*100000).format(*range(99999)) }}",
    "format one arg 9999": "{{ ('{0:>9999}'*100000).format('a') }}",
    "percent many 9999": "{{ ('%(a)9999s'*100000) % {'a':1} }}",
    "format unicode digits": "{{ '{:>٩٩٩٩٩٩٩٩٩}'.format('a') }}",
    "format nested str": "{{ '{:{w}}'.format(1, w='>999999999') }}",
    "format nested kw": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "format prec": "{{ '{:.999999999f}'.format(1.5) }}",
    "percent prec": "{{ '%.999999999f' % 1.5 }}",
    "format big int": "{{ '{:,}'.format(2**16000) }}",
    "format_map": "{{ '{a:>999999999}'.format_map({'a':1}) }}",
    "attr format": "{{ ('{:>999999999}'|attr('format'))(1) }}",
    "map center": "{{ ['a']|map('center', 10**9)|list }}",
    "attr ljust": "{{ (['a']|map(attribute='ljust')|first)(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big')|length }}",
    "encode": "{{ 'a'.encode().ljust(10**9) }}",
    "int pow chain": "{% set ns=namespace(x=2) %}{% for i in range(99999) %}{% set ns.x=ns.x**2 %}{% endfor %}",
    "pow neg": "{{ (-10)**(10**9) }}",
    "pow float": "{{ 10.0**(10**9) }}",
    "lshift": "{{ 1 * 2**16000 * 2**16000 }}",
    "round": "{{ 1.5|round(10**9, 'ceil') }}",
    "round neg": "{{ 1.5|round(-(10**9), 'floor') }}",
    "round method": "{{ 15|round(10**6, 'common') }}",
    "int hex": "{{ ('f'*1000000)|int(base=16) }}",
    "float long2": "{% for i in range(9999) %}{{ (('1'*500000)~'.'~('1'*500000))|float }}{% endfor %}",
    "tojson sep": "{{ range(99999)|list|tojson(separators=('a'*1000000, 'b')) }}",
    "tojson indent": "{{ [[1]]|tojson(indent='x'*1000000) }}",
    "tojson dag": doubling('[ns.x, ns.x]','[1]',30)+"{{ ns.x|tojson }}",
    "tojson emoji": "{{ ('😀'*1000000)|tojson(ensure_ascii=True)|length }}",
    "tojson loop": "{% set x=range(99999)|list %}{% for i in range(99999) %}{{ x|tojson|length }}{% endfor %}",
    "sort": "{% set x=range(99999)|list %}{% for i in range(99999) %}{% set y=x|sort(reverse=true) %}{% endfor %}",
    "sort strings": "{% set x=('ab '*300000).split() %}{% set y=x|sort %}",
    "sort long equal": "{% set x=['a'*100000]*100 %}{% for i in range(999) %}{% set y=x|sort %}{% endfor %}",
    "unique": "{% for i in range(9999) %}{% set y=range(99999)|unique|list %}{% endfor %}",
    "groupby": "{% for i in range(9999) %}{% set y=messages*9999|groupby('role') %}{% endfor %}",
    "urlencode": "{{ ('é'*1000000)|urlencode|length }}",
    "escape": "{{ ('<'*1000000)|e|length }}",
    "filesize": "{{ (2**16000)|filesizeformat }}",
    "truncate": "{{ ('a'*1000)|truncate(10, end='b'*1000000) }}",
    "cycler": "{% set c=cycler(*range(99999)) %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{{ c.next() }}{% endfor %}{% endfor %}",
    "joiner": "{% set j=joiner('a'*1000000) %}{% for i in range(99999) %}{{ j() }}{% endfor %}",
    "loop.cycle": "{% for i in range(99999) %}{{ loop.cycle('a'*1000000,'b'*1000000) }}{% endfor %}",
    "loop.changed": "{% set x=range(99999)|list %}{% for i in range(99999) %}{{ loop.changed(x) }}{% endfor %}",
    "macro varargs": "{% macro m() %}{{ varargs|length }}{% endmacro %}{% for i in range(99999) %}{{ m(*range(99999)) }}"
    "{% endfor %}",
    "macro tree": "{% macro m(n) %}{{ m(n+1) }}{{ m(n+1) }}{% endmacro %}{{ m(0) }}",
    "caller rec": "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
    "block rec": "{% block x %}{{ self.x() }}{{ self.x() }}{% endblock %}",
    "set blocks": "{% set y %}{% for i in range(99999) %}{{i}}{{i}}{{i}}{{i}}{{i}}{{i}}{{i}}{{i}}{% endfor %}"
    "{% endset %}{{ y|length }}",
    "set blocks nested": "{% set y %}{% for j in range(99999) %}{% for i in range(99999) %}{{i}}{{i}}{{i}}{{i}}{{i}}{{i}}{{i}}"
    "{{i}}{% endfor %}{% endfor %}{% endset %}",
    "text nested": "{% set y %}{% for j in range(63900) %}{% for i in range(63900) %}"
    +"{##}a"*12700+"{% endfor %}{% endfor %}{% endset %}",
    "text nested root": "{% for j in range(99999) %}{% for i in range(99999) %}"+"xy{{''}}"*8000+"{% endfor %}{% endfor %}",
    "if-loops": "{% for j in range(99999) %}{% for i in range(99999) if false %}{% endfor %}{% endfor %}",
    "empty loops 3": "{% for j in range(99999) %}{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "slices": "{% set x='a'*1000000 %}{% set ns=namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l=ns.l+[x[1:]] %}{% endfor %}",
    "list append": "{% set ns=namespace(l=[]) %}{% for j in range(99999) %}{% for i in range(99999) %}"
    "{% set ns.l=ns.l+[i] %}{% endfor %}{% endfor %}",
    "str list": "{% set ns=namespace(l=[]) %}{% for j in range(99999) %}{% for i in range(99999) %}"
    "{% set ns.l=[ns.l|length ~ 'x', i, i*1000] %}{% endfor %}{% endfor %}",
    "emoji mult": "{% set ns=namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l=ns.l+['😀'*1000000] %}{% endfor %}",
    "dict.fromkeys": "{% for i in range(99999) %}{% set x=dict.fromkeys(range(99999)) %}{% endfor %}",
    "dict kw": "{% set ns=namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l=ns.l+[dict(a=1,b=2,c=i)] %}"
    "{% endfor %}",
    "range lists": "{% set ns=namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l=ns.l+[range(99999)|list] %}"
    "{% endfor %}",
    "range map string": "{% set ns=namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l=ns.l+[range(99999)|map('string')|list] %}{% endfor %}",
    "autoescape": "{% autoescape true %}{{ ('<'*1000000) }}{% endautoescape %}",
    "safe mult": "{{ ('<'*1000000)|safe * 1000 }}",
    "markup join": "{{ (''|safe).join(['<'*1000000]*1000)|length }}",
    "markup striptags": "{{ ('<'*1000000|safe).striptags() }}",
    "markup fmt": "{{ ('%s'|safe * 100000) % ('<'*100000) }}",
    "markup add": "{{ (''|safe) + '<'*1000000 }}",
    "strftime long": "{{ strftime_now('%A'*500000) }}",
    "attr fmt": "{{ '{0.__class__}'|format(1) }}{{ '{0.__class__.__mro__}'.format(messages) }}",
    "namespace cls": "{{ namespace.__init__.__globals__ }}",
    "ns mro": "{{ namespace.mro() }}",
    "ns dunder": "{% set ns=namespace() %}{% set ns.__class__=1 %}",
    "ns dunder kw": "{{ namespace(**{'__class__':1}) }}",
    "cycler cls": "{{ cycler.__init__.__globals__.os }}",
    "macro attrs": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "join values dag": doubling('ns.x ~ ns.x'),
    "unpack": "{% set a, b = range(99999) %}",
    "dictsort": "{{ dict.fromkeys(range(99999))|dictsort|length }}",
    "items": "{{ ([{'a':1}]*100000)|map('items')|list|length }}",
    "list str": "{{ ([['a'*1000]*1000]*1000)|string|length }}",
    "list mult nest": "{{ ([[['a']*1000]*1000]*1000)|length }}",
    "list mult nest2": "{{ [[0]*1000000]*1000000 == [[0]*1000000]*1000000 }}",
    "bignum cmp": "{% for i in range(99999) %}{{ 2**16000 == 2**16000 }}{% endfor %}",
    "bignum str": "{{ 2**16000 }}",
    "bignum div": "{% for i in range(99999) %}{{ (2**16000 // 3) % 7 }}{% endfor %}",
    "wordwrap": "{{ 'a'|wordwrap(1) }}",
    "pprint": "{{ messages|pprint }}",
    "sum attr": "{{ (messages*100000)|sum(attribute='x') }}",
    "10MB": "x"*10_000_000,
    "10MB expr": "{{a}}"*2_000_000,
    "include": "{% include 'x' %}",
    "extends": "{% extends messages %}",
    "import msgs": "{% import messages as x %}",
}  # fmt: skip

# -- may end either way, but soon -------------------------------------------------------------------------------------

BOUNDED = {
    "macro closure chain": "{% set ns=namespace(f=1) %}{% for i in range(99999) %}{% set p=ns.f %}{% macro m() %}{{ p }}"
    "{% endmacro %}{% set ns.f=m %}{% endfor %}ok",
    "find": "{{ %s.find('a'*500000 ~ 'b') }}{{ %s.find('b' ~ 'a'*500000 ) }}"%(BIG,BIG),
    "in": "{{ ('a'*500000 ~ 'b') in %s }}"%BIG,
    "count": "{{ %s.count('a'*500000 ~ 'b') }}"%BIG,
    "map format": "{{ ['{:>999999999}']|map(attribute='format')|first }}",
    "pow to pow": "{{ 9**9**9**9 }}",
    "int base": "{{ ('9'*1000000)|int(base=36) }}",
    "float long": "{{ ('9'*1000000)|float }}",
    "title": "{{ ('a b'*300000)|title|length }}",
    "wordcount": "{{ ('a b'*300000)|wordcount }}",
    "default": "{% set x='a'*1000000 %}{% for i in range(99999) %}{{ x|default('')|length }}{% endfor %}",
    "self as text": "{{ self }}{{ self.x }}",
    "ctx": "{{ context }}{{ environment }}{{ loop }}",
    "attr": "{{ ''|attr('__class__') }}",
    "dict cls": "{{ dict.__class__ }}{{ dict.mro }}",
    "filter as map": "{{ messages|map('attr','__class__')|list }}",
    "sort attr": "{{ messages|sort(attribute='__class__') }}",
    "groupby attr": "{{ messages|groupby('__class__') }}",
    "lazy internals": "{{ (messages|map('length'))._items }}{{ (messages|map('length')).gi_frame }}",
    "do call": "{{ range(99999)|sum }}",
    "random": "{{ range(99999)|random is number }}",
}  # fmt: skip

# -- the parser and the compiler: (beginning, what is repeated, what follows as often, end); "@" is a running number -------

_GROWN = {
    "deep paren": ("{{ ", "(", "1)", " }}"),
    "deep list": ("{{ ", "[", "]", " }}"),
    "deep not": ("{{ ", "not ", "", "1 }}"),
    "deep neg": ("{{ ", "-", "", "1 }}"),
    "deep attr": ("{{ a", ".b", "", " }}"),
    "deep item": ("{{ a", "[0]", "", " }}"),
    "deep call": ("{{ a", "()", "", " }}"),
    "deep filter": ("{{ a", "|e", "", " }}"),
    "deep add": ("{{ 1", "+1", "", " }}"),
    "deep and": ("{{ 1", " and 1", "", " }}"),
    "deep cond": ("{{ ", "1 if 1 else ", "", "1 }}"),
    "deep concat": ("{{ 1", "~1", "", " }}"),
    "deep compare": ("{{ 1", "<1", "", " }}"),
    "deep if": ("", "{% if 1 %}", "{% endif %}", ""),
    "deep for": ("", "{% for a in b %}", "{% endfor %}", ""),
    "deep macro": ("", "{% macro a() %}", "{% endmacro %}", ""),
    "deep block": ("", "{% block a@ %}", "{% endblock %}", ""),
    "elif": ("{% if 1 %}", "{% elif 1 %}", "", "{% endif %}"),
    "many blocks": ("", "{% block a@ %}{% endblock %}", "", ""),
    "many sets": ("", "{% set a=1 %}", "", ""),
    "many macros": ("", "{% macro a() %}{% endmacro %}", "", ""),
    "many names": ("", "{{a@}}", "", ""),
    "many outputs": ("", "{{a}}", "", ""),
    "many tests": ("", "{{a is defined}}", "", ""),
    "many ifs": ("", "{% if a %}b{% endif %}", "", ""),
    "many loops": ("", "{% for a in b %}c{% endfor %}", "", ""),
    "many comments": ("", "{#a#}", "", ""),
    "many raw": ("", "{% raw %}a{% endraw %}", "", ""),
    "raw open": ("", "{% raw ", "", ""),
    "comment open": ("", "{# ", "", ""),
    "block open": ("", "{%", "", ""),
    "braces": ("", "{", "", ""),
    "spaces": ("", " ", "", "x"),
    "newlines": ("", "\n", "", ""),
    "spaces and lines": ("", " " * 300 + "\n", "", ""),
    "spaces in blocks": ("", "{%" + " " * 900, "", ""),
    "spaces before a value": ("", " " * 1900 + "{{a}}", "", ""),
    "quotes": ("{{ ", "'", "", ""),
    "escaped quotes": ("{{ '", "\\'", "", ""),
    "digits": ("{{ ", "1", "", " }}"),
    "digits and lines": ("{{ ", "1_", "", " }}"),
    "hexadecimal": ("{{ 0x", "f", "", " }}"),
    "float": ("{{ 1.", "1", "", " }}"),
    "exponent": ("{{ 1e", "9", "", " }}"),
    "long name": ("{{ ", "a", "", " }}"),
    "integers": ("{{ [", "1,", "", "] }}"),
    "pairs": ("{{ {", "1:1,", "", "} }}"),
    "strings": ("{{ [", "'',", "", "] }}"),
    "arguments": ("{{ f(", "1,", "", ") }}"),
    "named arguments": ("{{ f(", "a@=1,", "", ") }}"),
    "parameters": ("{% macro m(", "a@=1,", "", "b=1) %}{% endmacro %}{{ m() }}"),
}
GROWN = tuple(_GROWN)


def grown(name: str, size: int) -> str:
    """A source of about `size` characters."""
    head, one, other, end = _GROWN[name]
    n = (size - len(head) - len(end)) // (len(one + other) + 4 * one.count("@"))
    return head + "".join(one.replace("@", str(i)) for i in range(n)) + other * n + end
