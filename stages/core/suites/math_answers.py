"""Mathematical answers as text: where a completion gives its answer, when two texts are one. Regular expressions only.

The table of cases is in tests/stages/core/suites/test_math_answers.py. In order, the first that is there counts:

1. inside the last `<answer>` … `</answer>` (a missing end is tolerated), the cases below, or else all that stands there;
2. the last `\\boxed{…}` or `\\fbox{…}`, braces balanced;
3. the last line that starts with `####`;
4. after the last "answer is", "answer:" or "answer =" (any case, bold or not), to the end of that line;
5. the last `\\[…\\]`, `$$…$$`, `\\(…\\)` or `$…$`;
6. the whole completion, where it is one line and no prose: a formula alone, in a fence or not;
7. the last number.
"""

import re

_BOXES = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?=[^\s{]))")
_TAG = re.compile(r"<answer>(?P<inside>.*?)(?:</answer>|\Z)", re.S)
_HASHES = re.compile(r"^\s*####\s*(.+?)\s*$", re.M)
_PHRASE = re.compile(r"answer(?:\s+to\s+[^.\n]{0,80}?)?\**\s*(?:is|:|=|are)[:\s*]*(?P<rest>[^\n]+)", re.I)
_MATHS = re.compile(r"\\\[(.+?)\\\]|\$\$(.+?)\$\$|\\\((.+?)\\\)|(?<![\\$])\$([^$\n]+?)(?<!\\)\$", re.S)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))(?:/\d+)?")
_TAIL = re.compile(r"\s*(?:I hope it is correct|Hope this helps)\b.*$", re.I | re.S)
_DOLLAR = re.compile(r"(?<!\\)\$")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox|operatorname|mathbf)\s*\{([^{}]*)\}")
_FENCE = re.compile(r"^\s*```.*$", re.M)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\}")
_PROSE = re.compile(r"(?<![\\a-zA-Z])(?!(?:sin|cos|tan|cot|sec|csc|log|exp|min|max|gcd|lcm|mod)\b)[a-zA-Z]{3,}")
MAX_ANSWER, MAX_SHORT = 2_000, 300


def extract(text: str) -> str | None:
    """The answer that a completion gives, None if it gives none."""
    inside = [found["inside"].strip() for found in _TAG.finditer(text)]
    if inside:
        short = len(inside[-1]) <= MAX_SHORT and "\n" not in inside[-1]
        return _clean(_within(inside[-1], maths=not short) or inside[-1])
    found = _within(text)
    found = _alone(text) if found is None else found
    if found is None:
        numbers = [number for number in _NUMBER.findall(text) if number.strip()]
        found = numbers[-1] if numbers else None
    return None if found is None else _clean(found)


def _alone(text: str) -> str | None:
    """The one line that the completion is, unless it has words: those of formulas aside."""
    line = _FENCE.sub("", text).strip()
    prose = _PROSE.search(_TEXT.sub("", _ENVIRONMENT.sub("", line)))
    return line if 0 < len(line) <= MAX_SHORT and "\n" not in line and not prose and "boxed" not in line else None


def _within(text: str, maths: bool = True) -> str | None:
    boxed = last_boxed(text)
    if boxed:
        return boxed
    if hashes := _HASHES.findall(text):
        return str(hashes[-1])
    if phrases := list(_PHRASE.finditer(text)):
        return _phrase(phrases[-1]["rest"])
    if maths and (found := _MATHS.findall(text)):
        return str(next(part for part in found[-1] if part))
    return None


def last_boxed(text: str) -> str:
    """What the last `\\boxed{…}` holds, braces balanced; empty if there is none that ends."""
    for found in reversed(list(_BOXES.finditer(text))):
        if text[found.end() - 1] != "{":
            return text[found.end() :].split()[0].rstrip("$.,")
        depth, start = 1, found.end()
        for at in range(start, len(text)):
            escaped = text[at - 1] == "\\" and text[at - 2 : at] != "\\\\"
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return text[start:at].strip()
    return ""


def _phrase(rest: str) -> str:
    """The answer at the start of what follows "answer is": all of the formulas in it, or the whole line."""
    rest = _TAIL.sub("", rest).strip().strip("*").strip()
    maths = list(_MATHS.finditer(rest))
    if maths and maths[0].start() < 40:
        rest = rest[maths[0].start() : maths[-1].end()]
        for opening, closing in (("\\[", "\\]"), ("\\(", "\\)"), ("$$", "$$")):
            rest = rest.replace(opening, "").replace(closing, "")
    return rest


def _clean(text: str) -> str:
    """Without what surrounds an answer: white space, bold, formula marks, a full stop."""
    text = text.strip().removesuffix("<|endoftext|>").strip().strip("*").strip()
    while text.endswith((".", ";")) and not text.endswith("..."):
        text = text[:-1].rstrip().strip("*").rstrip()
    for opening, closing in (("\\[", "\\]"), ("\\(", "\\)")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening + closing):
            text = text[len(opening) : -len(closing)].strip()
    boxed = last_boxed(text) if text.startswith("\\boxed") else ""
    return _DOLLAR.sub("", boxed or text)


_SPACING = re.compile(
    r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle|limits)(?![a-zA-Z])|[\s$]|\\\$|~|(?<=\d),(?=\d{3}(?!\d))"
)
_SAME = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\geqslant": r"\geq", r"\leqslant": r"\leq"}
_WORDS = re.compile(r"[A-Za-z(][A-Za-z,()'-]+")


def normal(text: str) -> str:
    """A text form in which spacing, formula marks, sizes and fonts do not matter: equal forms are equal answers."""
    text = _TEXT.sub(r"\1", text)
    for name, usual in _SAME.items():
        text = text.replace(name, usual)
    text = _SPACING.sub("", text).rstrip(".")
    return text.lower() if _WORDS.fullmatch(text) else text
