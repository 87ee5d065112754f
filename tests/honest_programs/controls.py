"""Honest programs that must be valid, with their outputs: a judge that refuses these is as useless as one that leaks."""

CONTROLS: list[tuple[str, str, str]] = [
    ("def f(n):\n    def g(k): return k * n\n    return [g(i) for i in range(3)]", "4", "[0, 4, 8]"),
    ("def f(n): return 0 if n == 0 else 1 + f(n - 1)", "500", "500"),
    ("def f(x):\n    def gen():\n        yield from x\n    return sum(gen())", "[1, 2, 3]", "6"),
    (
        "class Stack:\n    def __init__(self): self._items = []\n    def push(self, x): self._items.append(x)\n"
        "    def __len__(self): return len(self._items)\ndef f(n):\n    s = Stack()\n    for i in range(n): s.push(i)\n"
        "    return len(s), type(s).__name__, s.__class__.__name__",
        "3",
        "(3, 'Stack', 'Stack')",
    ),
    ("def f(x):\n    try:\n        return 1 / x\n    except ZeroDivisionError:\n        return 'zero'", "0", "'zero'"),
    ("from functools import lru_cache\n@lru_cache(None)\ndef g(n): return n if n < 2 else g(n-1) + g(n-2)\ndef f(n): return g(n)", "50", "12586269025"),
    ("def f(s): return {c: s.count(c) for c in sorted(set(s))}", "'hello'", "{'e': 1, 'h': 1, 'l': 2, 'o': 1}"),
    ("def f(s): return {c: s.count(c) for c in set(s)}", "'hello'", "{'e': 1, 'h': 1, 'l': 2, 'o': 1}"),
    ("def f(n): return 2 ** n", "1000", str(2**1000)),
    ("def f(größe): return größe + 1", "1", "2"),
    ("def f(x): return '\\N{BULLET}' + x", "'a'", "'•a'"),
    ("def f(x):\n    match x:\n        case [a, *rest]: return a, rest\n        case _: return None", "[1, 2]", "(1, [2])"),
    ("def f(x): return (y := x + 1) * y", "2", "9"),
    ("def f(x, acc=[]):\n    acc.append(x)\n    return acc", "1", "[1]"),
    ("def f(x): return f'{x:.2f}|{x!r:>6}|%d' % x", "3.14159", "'3.14|3.14159|3'"),
    ("def f(x): return sorted(x, key=lambda p: p[0])", "[(1, 'b'), (0, 'z'), (1, 'a')]", "[(0, 'z'), (1, 'b'), (1, 'a')]"),
    ("import heapq\nimport bisect\nfrom itertools import permutations\nfrom collections import deque, defaultdict, Counter, OrderedDict\n"
     "def f(x):\n    h = list(x)\n    heapq.heapify(h)\n    return heapq.heappop(h), bisect.bisect([1, 3], 2), len(list(permutations(x))), "
     "Counter(x).most_common(1)", "[3, 1, 2]", "(1, 1, 6, [(3, 1)])"),
    ("import math\ndef f(x): return round(math.sqrt(x), 3), math.gcd(12, 18)", "2", "(1.414, 6)"),
    ("import re\ndef f(s): return re.findall(r'\\d+', s)", "'a1b22'", "['1', '22']"),
    ("from typing import List, Dict, Optional\ndef f(x: List[int]) -> Optional[Dict[str, int]]: return {'n': len(x)}", "[1]", "{'n': 1}"),
    ("from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 2\ndef f(a):\n    p = P(a)\n    return p.x, p.y, p < P(9), repr(p)",
     "1", "(1, 2, True, 'P(x=1, y=2)')"),
    ("from enum import Enum\nclass C(Enum):\n    A = 1\ndef f(): return C.A.name, C['A'].value", "", "('A', 1)"),
    ("from fractions import Fraction\nfrom decimal import Decimal\ndef f(): return str(Fraction(1, 3) + 1), str(Decimal('1.1') + 1)", "", "('4/3', '2.1')"),
    ("import datetime\ndef f(y): return datetime.date(y, 1, 1).weekday(), str(datetime.timedelta(days=2))", "2024", "(0, '2 days, 0:00:00')"),
    ("import json\ndef f(x): return json.loads(json.dumps(x))", "{'a': [1, None]}", "{'a': [1, None]}"),
    ("import string, copy, operator, statistics, functools\ndef f(x):\n    return string.ascii_lowercase[:3], copy.deepcopy(x), "
     "functools.reduce(operator.add, x), statistics.mean(x)", "[1, 2, 3]", "('abc', [1, 2, 3], 6, 2)"),
    ("import hashlib\ndef f(s): return hashlib.md5(s.encode()).hexdigest()", "'a'", "'0cc175b9c0f1b6a831c399e269772661'"),
    ("import sys\ndef f(): \n    sys.setrecursionlimit(3000)\n    return sys.maxsize", "", "9223372036854775807"),
    ("def f(x): return sorted(x), 3 in x, x | {9}", "{3, 1, 2}", "([1, 2, 3], True, {1, 2, 3, 9})"),
    ("def f(s): return s.encode('utf-16-le'), s.encode('latin-1')", "'é'", "(b'\\xe9\\x00', b'\\xe9')"),
    ("class Node:\n    def __init__(self, v, n=None): self.v, self.n = v, n\n    def __iter__(self):\n        while self: \n            yield self.v\n"
     "            self = self.n\ndef f(x):\n    head = None\n    for v in x: head = Node(v, head)\n    return list(head) if head else []", "[1, 2]", "[2, 1]"),
    ("def f(x):\n    vars = 3\n    open = x\n    compile = vars + open\n    return compile", "1", "4"),
    ("class A:\n    def __init__(self): self.time = 5; self.os = 6\ndef f():\n    a = A()\n    return a.time + a.os, getattr(a, 'time'), a.__dict__", "",
     "(11, 5, {'time': 5, 'os': 6})"),
    ("def f(a, *b, c=3, **d): return a, b, c, d", "1, 2, 3", "(1, (2, 3), 3, {})"),
    ("async def g(): return 1\ndef f():\n    c = g()\n    try: c.send(None)\n    except StopIteration as e: return e.value", "", "1"),
    ("def f(x):\n    print('hello')\n    return x", "None", "None"),
]  # fmt: skip
