"""Honest programs over every codec that Python has: what they return inside must be what the same interpreter returns outside."""

import encodings
import pkgutil

CODECS = sorted({module.name for module in pkgutil.iter_modules(encodings.__path__)} - {"aliases", "mbcs", "oem"})
TEXTS = ("13:45:56", "", "naïve café – „Größe“", "日本語テキスト、カタカナ", "中文繁體简体", "한국어", "Привет", "\x00\x7f\x80\xff", "a\udc80b", "😀e\u0301", "xn--a.b")  # fmt: skip

ENCODE = """
def f(codec, texts):
    found = []
    for text in texts:
        for errors in ('strict', 'ignore', 'replace', 'backslashreplace', 'xmlcharrefreplace', 'namereplace', 'surrogateescape'):
            try:
                data = text.encode(codec, errors)
                found.append((data, data.decode(codec, 'replace')))
            except (UnicodeError, LookupError, TypeError, AssertionError) as error:
                found.append(str(error))
    return found
"""
EVERY_CHARACTER = """
import zlib
def f(codec):
    sums = []
    for start in range(0, 0x11000, 0x1000):
        text = ''.join(chr(c) for c in range(start, start + 0x1000) if not 0xd800 <= c < 0xe000)
        try:
            data = text.encode(codec, 'replace')
            sums.append((len(data), zlib.crc32(data), zlib.crc32(data.decode(codec, 'replace').encode('utf-8', 'replace'))))
        except (UnicodeError, LookupError) as error:
            sums.append(type(error).__name__ + str(error)[:60])
    for width in (1, 2):
        for first in range(256):
            data = bytes([first, (first * 7 + 33) % 256][:width]) * 2
            try: sums.append(data.decode(codec))
            except (UnicodeError, LookupError) as error: sums.append(str(error)[:80])
    return sums
"""
