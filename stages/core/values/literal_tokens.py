"""The tokens of literals, and what the number and string tokens mean; `literals` puts them together. Nothing here runs code."""

import re
import unicodedata

MAX_DIGITS = 4_300
_LARGEST = 10**MAX_DIGITS

# Every repetition is possessive: what it has taken it never gives back, so that a text costs one pass and no memory.
_DIGITS = r"[0-9]++(?:_[0-9]++)*+"
_NUMBER = (
    r"0[xX](?:_?[0-9a-fA-F])++|0[oO](?:_?[0-7])++|0[bB](?:_?[01])++"
    rf"|(?:{_DIGITS}\.(?:{_DIGITS})?+|\.{_DIGITS}|{_DIGITS}(?=[eEjJ]))"
    rf"(?:[eE][-+]?{_DIGITS})?[jJ]?"
    r"|(?:0++(?:_0++)*+|[1-9][0-9]*+(?:_[0-9]++)*+)"
)
_STRING = (
    r"(?P<prefix>[bB][rR]?|[rR][bB]?|[uU])?"
    r'(?:"""(?P<q3>(?:[^\\"]++|\\[\s\S]|"(?!""))*+)"""'
    r"|'''(?P<a3>(?:[^\\']++|\\[\s\S]|'(?!''))*+)'''"
    r'|"(?P<q1>(?:[^\\"\n]++|\\[\s\S])*+)"'
    r"|'(?P<a1>(?:[^\\'\n]++|\\[\s\S])*+)')"
)
TOKEN = re.compile(
    rf"[ \t\n\r\f]*+(?:(?P<string>{_STRING})|(?P<number>(?:{_NUMBER})(?![0-9A-Za-z_.]))"
    r"|(?P<name>[A-Za-z]++)(?![0-9A-Za-z_])|(?P<mark>[][(){},:+-])|(?P<end>\Z))"
)
_ESCAPE = re.compile(
    r"\\(?:(\n)|([\\'\"abfnrtv])|([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|N\{([^{}\\\n]{1,90}+)\}|([\s\S]))"
)
_SIMPLE = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class LiteralError(ValueError):
    """The text is not one literal (or not an argument list) within the limits."""


class OverLimit(LiteralError):
    """It is a literal, but nested too deep, of too many values, or too costly to make."""


def number(text: str) -> int | float | complex:
    """The value of a number token without underscores. Raises LiteralError."""
    lowered = text.lower()
    if lowered[:2] in ("0x", "0o", "0b"):
        value = int(lowered, 0)
        if value >= _LARGEST:
            raise LiteralError(f"an integer over {MAX_DIGITS} digits")
        return value
    if lowered.endswith("j"):
        return complex(0.0, float(lowered[:-1]))
    if "." in lowered or "e" in lowered:
        return float(lowered)
    if len(text) > MAX_DIGITS:
        raise LiteralError(f"an integer over {MAX_DIGITS} digits")
    return int(text)


def string(found: re.Match[str]) -> str | bytes:
    """The value of a string token. Raises LiteralError."""
    prefix = (found["prefix"] or "").lower()
    body = next(found[name] for name in ("a1", "q1", "a3", "q3") if found[name] is not None)
    try:
        body.encode()
    except UnicodeEncodeError as error:
        raise LiteralError("a raw lone surrogate") from error
    if "b" in prefix:
        if not body.isascii():
            raise LiteralError("bytes with a non-ASCII character")
        text = body if "r" in prefix else _ESCAPE.sub(_byte_escape, body)
        return text.encode("latin-1")
    return body if "r" in prefix or "\\" not in body else _ESCAPE.sub(_text_escape, body)


def _text_escape(found: re.Match[str]) -> str:
    newline, simple, octal, byte, short, long, name, other = found.groups()
    if newline:
        return ""
    if simple:
        return _SIMPLE[simple]
    if name:
        try:
            return unicodedata.lookup(name)
        except KeyError as error:
            raise LiteralError("an unknown character name") from error
    if other:
        if other in "xuUN":
            raise LiteralError(f"a broken \\{other} escape")
        return "\\" + other
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code > 0x10FFFF:
        raise LiteralError("a character beyond Unicode")
    return chr(code)


def _byte_escape(found: re.Match[str]) -> str:
    newline, simple, octal, byte, *_ = found.groups()
    if newline:
        return ""
    if simple:
        return _SIMPLE[simple]
    if octal or byte:
        return chr(int(octal, 8) & 255 if octal else int(byte, 16))
    if found[0][1] == "x":
        raise LiteralError("a broken \\x escape")
    return found[0]
