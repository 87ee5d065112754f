"""The seed models' hand-made vocabulary: markers, every printable ASCII character, and the frequent pieces of small programs.

Text is cut at the longest piece that fits, left to right; digits stand alone. ASCII text comes back exactly; any other character
is the unknown token.
"""

import re
import string
from collections.abc import Sequence

from stages.core.prompts import compact, trace

PAD, EOS, UNKNOWN = "⟨pad⟩", "⟨eos⟩", "⟨unk⟩"
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


def _escaped(token: str) -> str:
    """Regular expression for a token, in the subset that Python's and the tokenizers library's engines share."""
    plain = string.ascii_letters + string.digits
    return "".join(c if c in plain else "\\n" if c == "\n" else f"\\x{ord(c):02x}" for c in token)


class Vocabulary:
    """The tokens of one model, and how text becomes token ids and back."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.markers = tuple(markers)
        self.special = (PAD, EOS, UNKNOWN, *self.markers)
        self.tokens = tuple(dict.fromkeys((*self.special, *CHARACTERS, *PIECES)))
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        plain = [token for token in self.tokens if token not in self.special]
        self._split = "|".join(map(_escaped, sorted(plain, key=lambda token: (-len(token), token))))
        self._pattern = re.compile("|".join([*map(re.escape, self.special), self._split, r"[\s\S]"]))

    def encode(self, text: str) -> list[int]:
        """Token ids; the same as the shipped `tokenizer.json` gives, only without its library."""
        unknown = self.ids[UNKNOWN]
        return [self.ids.get(piece, unknown) for piece in self._pattern.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, markers spelled out."""
        return "".join(self.tokens[index] for index in ids)

    def tokenizer_json(self) -> dict[str, object]:
        """Contents of `tokenizer.json` for the tokenizers library: split at the pieces, look each up, join without spaces."""
        added = [
            {"id": self.ids[token], "content": token, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for token in self.special
        ]
        regex = self._split + r"|[\s\S]"
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": self.ids, "unk_token": UNKNOWN},
        }

    def tokenizer_config(self, window: int) -> dict[str, object]:
        """Contents of `tokenizer_config.json`."""
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": window,
            "pad_token": PAD,
            "eos_token": EOS,
            "unk_token": UNKNOWN,
            "additional_special_tokens": list(self.markers),
            "clean_up_tokenization_spaces": False,
        }


COMPACT = Vocabulary(compact.MARKERS)
"""The vocabulary of the model that answers directly."""
TRACE = Vocabulary(trace.MARKERS)
"""The vocabulary of the model that shows its steps."""
