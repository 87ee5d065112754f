"""The seed model's hand-made vocabulary: markers, every printable ASCII character, and the frequent pieces of small programs.

Text is cut at the longest piece that fits, left to right; digits stand alone. ASCII text comes back exactly; any other character
is the unknown token.
"""

import re
import string

from stages.core.prompts.compact import MARKERS

PAD, EOS, UNKNOWN = "⟨pad⟩", "⟨eos⟩", "⟨unk⟩"
SPECIAL = (PAD, EOS, UNKNOWN, *MARKERS)
CHARACTERS = ("\n", *(chr(code) for code in range(32, 127)))
PIECES = (
    "def f(", "def ", "):\n    ", "):\n        ", ":\n        ", ":\n            ", "\n    ", "\n        ", "\n            ",
    "\n    return ", "return ", "for ", " for ", " in ", " in range(", "range(", "if ", " if ", " else ", "else:",
    "\n    else:\n        ", "while ", "lambda ", " and ", " or ", "not ", " not in ", "True", "False", "None", "len(",
    "sum(", "max(", "min(", "abs(", "str(", "int(", "list(", "set(", "dict(", "tuple(", "zip(", "sorted(", "key=len",
    "reverse=True", "enumerate(", ".append(", ".upper()", ".lower()", ".title()", ".swapcase()", ".strip(", ".split(",
    ".replace(", ".join(", ".count(", ".find(", ".index(", ".startswith(", ".endswith(", ".values()", ".items()", ".get(",
    " = ", " += ", " -= ", " *= ", " //= ", " == ", " != ", " < ", " > ", " <= ", " >= ", " + ", " - ", " * ", " // ", " % ",
    ", ", ": ", "', '", "['", "']", "[::-1]", "[::2]", "[0]", "[-1]", "[1:]", "[:-1]", "[1:-1]", "''", "[]", " = ''", " = []",
    " = 0", " == 0", "%", "res", "out", "acc", "cur", "tmp", "num", "val", "text", "word", "items",
)  # fmt: skip
TOKENS = tuple(dict.fromkeys((*SPECIAL, *CHARACTERS, *PIECES)))
IDS = {token: index for index, token in enumerate(TOKENS)}

_LONGEST_FIRST = sorted((token for token in TOKENS if token not in SPECIAL), key=lambda token: (-len(token), token))


def _escaped(token: str) -> str:
    """Regular expression for a token, in the subset that Python's and the tokenizers library's engines share."""
    plain = string.ascii_letters + string.digits
    return "".join(c if c in plain else "\\n" if c == "\n" else f"\\x{ord(c):02x}" for c in token)


_SPLIT = "|".join(map(_escaped, _LONGEST_FIRST))
_PATTERN = re.compile("|".join([*map(re.escape, SPECIAL), _SPLIT, r"[\s\S]"]))


def encode(text: str) -> list[int]:
    """Token ids; the same as the shipped `tokenizer.json` gives, only without its library."""
    unknown = IDS[UNKNOWN]
    return [IDS.get(piece, unknown) for piece in _PATTERN.findall(text)]


def decode(ids: list[int]) -> str:
    """Text of token ids, markers spelled out."""
    return "".join(TOKENS[index] for index in ids)


def tokenizer_json() -> dict[str, object]:
    """Contents of `tokenizer.json` for the tokenizers library: split at the pieces, look each up, join without spaces."""
    added = [
        {"id": IDS[token], "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in SPECIAL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": _SPLIT + r"|[\s\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": IDS, "unk_token": UNKNOWN},
    }


def tokenizer_config(window: int) -> dict[str, object]:
    """Contents of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": window,
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "additional_special_tokens": list(MARKERS),
        "clean_up_tokenization_spaces": False,
    }
