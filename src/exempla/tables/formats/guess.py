"""Which codec a text is in that is neither UTF-8 nor marked: charset-normalizer's guess, checked.

Western letters with accents stand alone between plain ones, and there guesses from so few bytes
are often wrong: such a text stays cp1252. Cyrillic, Greek, Hebrew, Arabic, Japanese, Chinese and
Korean come in runs of non-ASCII bytes; which of them it is, charset-normalizer tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["guess_codecs"]

EASTERN = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
"""Two bytes a character: Japanese (Shift-JIS, EUC), Chinese (GBK, Big5), Korean."""
OTHERS = ("cp1251", "koi8_r", "cp866", "iso8859_5", "cp1253", "cp1255", "cp1256")
"""Cyrillic (four), Greek, Hebrew, Arabic."""
ENOUGH = 60_000
"""Bytes that are looked at, all of them from cells with other letters than ASCII."""
IN_RUNS = 0.7
"""Share of non-ASCII bytes beside another one: 0.8 and more in these scripts, below 0.5 in
Western languages."""
FEWEST = 8
"""Non-ASCII bytes below which nothing can be told."""
PLAIN = re.compile(rb'[\t\r\n,;"]')
"""Ends a cell; in none of these codecs is it half of a character."""
OTHER = re.compile(rb"[\x80-\xff]")


def guess_codecs(data: bytes) -> list[str]:
    """Codecs this text may be in, the likeliest first; none for Western text.

    >>> guess_codecs("текст,да\\nещё текст,нет\\n".encode("cp1251"))[0]
    'cp1251'
    >>> guess_codecs("Vidéo,né\\n".encode("cp1252"))
    []
    """
    sample = b"\n".join(dict.fromkeys(_cells(data)))
    single = len(OTHER.findall(sample))
    together = sum(map(len, re.findall(rb"[\x80-\xff]{2,}", sample)))
    if single < FEWEST or together < IN_RUNS * single:
        return []
    from charset_normalizer import from_bytes

    found = from_bytes(sample, cp_isolation=[*EASTERN, *OTHERS])
    matches = [match for match in found if match.encoding in (*EASTERN, *OTHERS)]
    # It often calls several equally likely; then the text must look like what the codec is for.
    matches.sort(
        key=lambda m: (round(_at_home(str(m), m.encoding), 1), -m.chaos, m.coherence), reverse=True
    )
    return [match.encoding for match in matches]


def _cells(data: bytes) -> Iterator[bytes]:
    """Cells with other bytes than ASCII, from anywhere in the file, up to `ENOUGH`."""
    at = taken = 0
    while taken < ENOUGH and (here := OTHER.search(data, at)) is not None:
        start = 1 + max(data.rfind(mark, at, here.start()) for mark in (b"\n", b",", b";", b"\t"))
        end = PLAIN.search(data, here.end())
        cell = data[max(start, at) : len(data) if end is None else end.start()]
        yield cell
        taken += len(cell)
        at = here.end() if end is None else end.end()
        if end is None:
            return


def _at_home(text: str, codec: str) -> float:
    """Share of the non-ASCII characters that belong to the language of a codec."""
    other = [letter for letter in text if letter > "\x7f"]
    kana = sum("\u3041" <= letter <= "\u30ff" for letter in other)
    # cp949 has thousands of syllables that nobody writes, and Shift-JIS read as cp949 is full of
    # them; EUC-KR has the common ones.
    hangul = sum(
        "\uac00" <= c <= "\ud7a3" and len(c.encode("euc_kr", "ignore")) == 2 for c in other
    )
    # Ideographs and the punctuation that goes with them.
    ideographs = sum(
        "\u4e00" <= letter <= "\u9fff" or "\u3000" <= letter <= "\u3040" or letter >= "\uff00"
        for letter in other
    )
    if codec in ("cp932", "euc_jp"):  # hardly a Japanese sentence has no kana
        fitting = kana + ideographs if kana > 0.1 * len(other) else 0
    elif codec in ("gb18030", "big5"):
        fitting = ideographs
    elif codec == "cp949":
        fitting = hangul
    else:
        fitting = sum(letter.isalpha() or letter in "«»“”„–—’№…\xa0" for letter in other)
    return fitting / max(len(other), 1)
