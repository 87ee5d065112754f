"""Statements of the generated programs: assignments, branches, loops, nested helpers, and the body they make together."""

from stages.core.seed_model.program_grammar import (
    CONDITIONS,
    MAPPINGS,
    Scope,
    comprehension,
    condition,
    expression,
    fill,
)

LEVELS = (1, 2, 3, 4)
_STEP = {"I": ("+=", "+=", "-=", "*="), "S": ("+=",), "L": ("+=",), "W": ("+=",)}


def _indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def assignment(scope: Scope, kind: str) -> list[str]:
    """`v = expression` or a comprehension."""
    text = comprehension(scope, kind) if kind in "LISW" and scope.draw.unit() < 0.2 else expression(scope, kind, 1)[0]
    return [f"{scope.assign(kind)} = {text}"]


def branch(scope: Scope, kind: str) -> list[str]:
    """`if c: v = …` in one of three shapes; the variable exists afterwards in each."""
    draw = scope.draw
    test = condition(scope)
    first, second = expression(scope, kind, 1)[0], expression(scope, kind, 1)[0]
    shape = draw.below(3)
    if shape == 0:
        return [f"if {test}:", f"    return {first}"]
    known = [name for name, its in scope.locals.items() if its == kind]
    name = known[0] if known and shape == 1 else scope.assign(kind)
    if known and shape == 1:
        return [f"if {test}:", f"    {name} {draw.pick(_STEP[kind])} {expression(scope, kind, 0)[0]}"]
    return [f"if {test}:", f"    {name} = {first}", "else:", f"    {name} = {second}"]


def accumulate(scope: Scope, kind: str) -> list[str]:
    """A loop over a list or string that adds up numbers, letters or list items, with an optional test."""
    draw = scope.draw
    source = draw.pick({"I": "LLWS", "L": "LLW", "S": "SSW", "W": "WWS"}[kind])
    newest = next(iter(scope.locals.values()), "I")
    if newest in "LWS" and draw.unit() < 0.8:
        source = newest
    over = expression(scope, source, 1 if draw.unit() < 0.15 else 0)[0]
    item, element = scope.new_name(words=False), "I" if source == "L" else "S"
    target = "I" if kind in "IL" else "S"
    value = item
    if element != target or draw.unit() < 0.6:
        value = fill(scope, draw.pick(MAPPINGS[element + target]), 1, item)[0]
    test = condition(scope, item, element) if draw.unit() < 0.45 else None
    name = scope.assign(kind)
    if kind == "I":
        step, start = f"{name} {draw.pick(('+=', '+=', '-='))} {value}", str(draw.pick((0, 0, 0, 1, 2)))
    elif kind == "S":
        step, start = draw.pick((f"{name} += {value}", f"{name} = {value} + {name}")), "''"
        if element == "S" and draw.unit() < 0.15:
            test = f"{item} not in {name}"
    else:
        step, start = f"{name}.append({value})", "[]"
        if element == target and draw.unit() < 0.15:
            test, step = f"{item} not in {name}", f"{name}.append({item})"
    body = [f"if {test}:", f"    {step}"] if test else [step]
    return [f"{name} = {start}", f"for {item} in {over}:", *_indent(body)]


def counted(scope: Scope, kind: str) -> list[str]:
    """A loop over `range`, with a running number."""
    draw = scope.draw
    index = scope.new_name(words=False)
    bound = f"range({expression(scope, 'I', 0)[0]})" if draw.unit() < 0.5 else f"range({2 + draw.below(3)})"
    if kind == "I":
        value = fill(scope, draw.pick(MAPPINGS["II"]), 1, index)[0] if draw.unit() < 0.6 else index
        start = expression(scope, "I", 0)[0]
        name = scope.assign("I")
        return [f"{name} = {start}", f"for {index} in {bound}:", f"    {name} {draw.pick(_STEP['I'][:3])} {value}"]
    if kind == "L":
        value = fill(scope, draw.pick(MAPPINGS["II"]), 1, index)[0]
        name = scope.assign("L")
        return [f"{name} = []", f"for {index} in {bound}:", f"    {name}.append({value})"]
    if kind == "S":
        start = expression(scope, "S", 0)[0]
        name = scope.assign("S")
        value = draw.pick((f"{name} + str({index})", f"str({index}) + {name}", f"{name}[1:] + {name}[:1]"))
        return [f"{name} = {start}", f"for {index} in {bound}:", f"    {name} = {value}"]
    return accumulate(scope, kind)


def shrinking(scope: Scope, kind: str) -> list[str]:
    """A `while` loop that surely ends: its variable shrinks towards a bound."""
    draw = scope.draw
    if kind != "I":
        return accumulate(scope, kind)
    start = expression(scope, "I", 0)[0]
    name, total = scope.new_name(), scope.assign("I")
    step = draw.pick((f"{name} -= {2 + draw.below(3)}", f"{name} //= 2", f"{name} -= {1 + draw.below(2)}"))
    gain = draw.pick((f"{total} += 1", f"{total} += {name}", f"{total} += {name} % 2", f"{total} += {1 + draw.below(5)}"))
    lines = [gain, step] if draw.unit() < 0.7 else [step, gain]
    return [f"{name}, {total} = {start}, {draw.below(3)}", f"while {name} > {draw.below(4)}:", *_indent(lines)]


def helper(scope: Scope, kind: str) -> list[str]:
    """A nested function of one argument and a use of it."""
    draw = scope.draw
    name, argument = scope.new_name(words=False), scope.new_name(words=False)
    element = "I" if kind in "IL" else "S"
    body = fill(scope, draw.pick(MAPPINGS[element * 2]), 1, argument)[0]
    lines = [f"def {name}({argument}):"]
    if draw.unit() < 0.3:
        test = fill(scope, draw.pick(CONDITIONS[element]), 1, argument)[0]
        lines += [f"    if {test}:", f"        return {fill(scope, draw.pick(MAPPINGS[element * 2]), 1, argument)[0]}"]
    lines.append(f"    return {body}")
    inner = expression(scope, kind, 0)[0]
    if kind in "LW":
        item = scope.new_name(words=False)
        use = f"[{name}({item}) for {item} in {inner}]"
    else:
        use = f"{name}({name}({inner}))" if draw.unit() < 0.4 else f"{name}({inner})"
    return [*lines, f"{scope.assign(kind)} = {use}"]


def _finish(scope: Scope, kind: str, depth: int) -> str:
    """The last line. It returns the newest variable, bare or inside an expression."""
    draw = scope.draw
    if scope.locals:
        name, its = next(iter(scope.locals.items()))
        if draw.unit() < 0.55:
            return f"return {name}"
        if its in "IS" and draw.unit() < 0.5:
            return f"return {fill(scope, draw.pick(MAPPINGS[its + its]), 1, name)[0]}"
        if draw.unit() < 0.2:
            return f"return {name}, {expression(scope, draw.pick('IIS'), 0)[0]}"
        return f"return {expression(scope, its, 1)[0]}"
    if draw.unit() < 0.12 and kind in "LISW":
        return f"return {comprehension(scope, kind)}"
    if draw.unit() < 0.08 and depth > 1:
        first, second = expression(scope, kind, 1)[0], expression(scope, kind, 0)[0]
        return f"return {first} if {condition(scope)} else {second}"
    return f"return {expression(scope, kind, depth)[0]}"


def body(scope: Scope, level: int) -> list[str]:
    """The lines under `def f(…):`, unindented.

    Level 1 is one expression; 2 is a deeper one or an assignment first; 3 has a loop, branch or helper; 4 has two of them.
    """
    draw = scope.draw
    kind = "ISLWBTD"[draw.weighted((34, 26, 22, 8, 6, 3, 1))]
    if level == 1:
        return [_finish(scope, kind, 2 if draw.unit() < 0.4 else 1)]
    if level == 2 and draw.unit() < 0.5:
        return [_finish(scope, kind, 2)]
    kind = kind if kind in "ISLW" else draw.pick("ISL")
    if level == 2:
        return [*assignment(scope, kind), _finish(scope, kind, 1)]
    blocks = (assignment, branch, accumulate, counted, shrinking, helper)
    weights = (0, 25, 38, 17, 8, 12)
    lines: list[str] = []
    for turn in range(level - 2):
        its = kind if turn == 0 or draw.unit() < 0.7 else draw.pick("ISL")
        if draw.unit() < (0.25 if level == 3 else 0.3):
            lines += assignment(scope, its)
        lines += blocks[draw.weighted(weights)](scope, its)
    return [*lines, _finish(scope, kind, 1)]
