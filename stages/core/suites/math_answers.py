"""Mathematical answers as text: find a completion's answer, and decide if two texts are equal. Regular expressions only.

The table of cases is in tests/stages/core/suites/test_math_answers.py. In order, the first that is there counts:

1. inside the last `<answer>` … `</answer>` (a missing end is tolerated), the cases below, or else all that stands there;
2. the last `\\boxed{…}` or `\\fbox{…}`, braces balanced;
3. the last line that starts with `####`;
4. after the last "answer is", "answer:" or "answer =" (any case, bold or not), to the end of that line, if something is there;
5. the last `\\[…\\]`, `$$…$$`, `\\(…\\)` or `$…$`;
6. the whole completion, where it is one line and no prose: a formula alone, in a fence or not;
7. the last number.
"""

import re
from collections.abc import Iterator

# Model-written text: every pattern takes one pass over it, whatever it is;
# tests/stages/core/values/test_linear_reading.py counts their steps.
_BOXES = re.compile(r"\\(?:boxed|fbox)\s*+(?:\{|(?=[^\s{]))")
_BRACE = re.compile(r"[{}]")
_TAG = re.compile(r"<answer>(?P<inside>.*?)(?:</answer>|\Z)", re.S)
_HASHES = re.compile(r"^[^\S\n]*+####\s*+(?P<rest>[^\n]++)", re.M)
_ANSWER = re.compile(r"answer(?P<to>\s++to\s++)?+", re.I)
_LINK = re.compile(r"(?<![\s*])(?P<before>[\s*]*+)(?:is|:|=|are)(?P<after>[:\s*]*+)", re.I)
_OPENING = re.compile(r"\\\[|\\\(|\$\$?")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})++|\d++)?(?:\.\d++|(?<=\d))(?:/\d++)?")
_TAIL = re.compile(r"(?<!\s)\s*+(?:I hope it is correct|Hope this helps)\b.*", re.I | re.S)
_DOLLAR = re.compile(r"(?<!\\)\$")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox|operatorname|mathbf)\s*+\{([^{}]*+)\}")
_FENCE = re.compile(r"^[^\S\n]*+```.*$", re.M)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]++\}")
_PROSE = re.compile(r"(?<![\\a-zA-Z])(?!(?:sin|cos|tan|cot|sec|csc|log|exp|min|max|gcd|lcm|mod)\b)[a-zA-Z]{3,}")
MAX_ANSWER, MAX_SHORT, MAX_SUBJECT = 2_000, 300, 80


def extract(text: str) -> str | None:
    """Return the answer in a completion, or None if there is none."""
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
    if hashes := list(_HASHES.finditer(text)):
        return hashes[-1]["rest"].rstrip()
    if phrases := list(_phrases(text)):
        return _phrase(phrases[-1])
    formulas = _formulas(text) if maths else []
    return text[slice(*formulas[-1][1])] if formulas else None


def last_boxed(text: str) -> str:
    """Return the content of the last `\\boxed{…}`, braces balanced; empty if none is closed."""
    boxes = list(_BOXES.finditer(text))
    closing = _closing_braces(text) if boxes else {}
    for found in reversed(boxes):
        if text[found.end() - 1] != "{":
            return text[found.end() :].split(maxsplit=1)[0].rstrip("$.,")
        if found.end() - 1 in closing:
            return text[found.end() : closing[found.end() - 1]].strip()
    return ""


def _closing_braces(text: str) -> dict[int, int]:
    """Where each brace that opens is closed; those behind one backslash are not braces."""
    found, open_ones = {}, []
    for brace in _BRACE.finditer(text):
        at = brace.start()
        if text[at - 1 : at] == "\\" and text[max(at - 2, 0) : at] != "\\\\":
            continue
        if brace[0] == "{":
            open_ones.append(at)
        elif open_ones:
            found[open_ones.pop()] = at
    return found


def _phrases(text: str) -> Iterator[str]:
    """What follows "answer is", "answer: " and "answer to … is", each to the end of its line; in a line the first counts."""
    links = _LINK.finditer(text)
    link = next(links, None)
    at = 0
    while link and (answer := _ANSWER.search(text, at)):
        at, begin = answer.end(), answer.end()
        while link and link.start("after") <= begin:
            link = next(links, None)
        if link is None:
            return
        subject = text[begin : max(begin, link.start())] if link.start() <= begin + MAX_SUBJECT else "\n"
        if subject and (not answer["to"] or "." in subject or "\n" in subject):
            continue
        if link.end() < len(text) and (answer["to"] or "*" not in link["before"].lstrip("*")):
            end = text.find("\n", link.end())
            at = end if end >= 0 else len(text)
            yield text[link.end() : at]


def _formulas(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The formulas between `\\[…\\]`, `$$…$$`, `\\(…\\)` and `$…$`: where each lies with its marks and without."""
    found, at = [], 0
    unclosed: set[str] = set()  # marks that nothing closes any more
    while opening := _OPENING.search(text, at):
        mark, begin, at = opening[0], opening.end(), opening.start() + 1
        end = -1
        if mark != "$" and mark not in unclosed:
            end = text.find(_CLOSES[mark], begin + 1)
        elif mark == "$" and text[opening.start() - 1 : opening.start()] not in ("\\", "$"):
            end = _dollar(text, begin)
        if end >= 0:
            at = end + len(mark)
            found.append(((opening.start(), at), (begin, end)))
        elif mark != "$":
            unclosed.add(mark)
    return found


_CLOSES = {"\\[": "\\]", "\\(": "\\)", "$$": "$$"}
_SINGLE = re.compile(r"[^$\n]++(?<!\\)(?=\$)")


def _dollar(text: str, begin: int) -> int:
    """Return the position of the dollar sign that closes the formula starting here, -1 if its line has none."""
    found = _SINGLE.match(text, begin)
    return found.end() if found else -1


def _phrase(rest: str) -> str:
    """The answer at the start of what follows "answer is": all of the formulas in it, or the whole line."""
    rest = _TAIL.sub("", rest).strip().strip("*").strip()
    maths = _formulas(rest)
    if maths and maths[0][0][0] < 40:
        rest = rest[maths[0][0][0] : maths[-1][0][1]]
        for opening, closing in (("\\[", "\\]"), ("\\(", "\\)"), ("$$", "$$")):
            rest = rest.replace(opening, "").replace(closing, "")
    return rest


def _clean(text: str) -> str:
    """Strip what surrounds an answer: white space, bold, formula marks, a full stop."""
    text = text.strip().removesuffix("<|endoftext|>").strip().strip("*").strip()
    end = len(text)
    while end and text[end - 1] in ".;" and not text.endswith("...", 0, end):
        end -= 1
        while end and (text[end - 1].isspace() or text[end - 1] == "*"):
            end -= 1
    text = text[:end]
    for opening, closing in (("\\[", "\\]"), ("\\(", "\\)")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening + closing):
            text = text[len(opening) : -len(closing)].strip()
    boxed = last_boxed(text) if text.startswith("\\boxed") else ""
    return _DOLLAR.sub("", boxed or text)


_SPACE = r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle|limits)(?![a-zA-Z])|[\s$]|\\\$|~"
_SPACING = re.compile(rf"(?<=\d)(?:,|\\,)(?=\d{{3}}(?!\d))|(?P<digit>(?<=\d))?(?:{_SPACE})++(?(digit)(?P<next>(?=\d))?)")
_SAME = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\geqslant": r"\geq", r"\leqslant": r"\leq"}
_WORDS = re.compile(r"[A-Za-z(][A-Za-z,()'-]+")


def normal(text: str) -> str:
    """A text form in which spacing, formula marks, sizes and fonts do not matter: equal forms are equal answers.

    Between two digits space stays, as one: `2 1/2` is not `21/2`. What groups thousands goes.
    """
    text = _TEXT.sub(r"\1", text)
    for name, usual in _SAME.items():
        text = text.replace(name, usual)
    text = _SPACING.sub(lambda found: "" if found["next"] is None else " ", text).strip().rstrip(".")
    return text.lower() if _WORDS.fullmatch(text) else text
