"""Encodings that no mark tells: what is guessed, what is refused, and every byte kept."""

from __future__ import annotations

import encodings.aliases
import random
from pathlib import Path

import pytest

from exempla import ExemplaError
from exempla.tables import Decision, export, read_table
from exempla.tables.formats.encoding import _sniff_encoding

SENTENCES = {
    "russian": ["Отличный фильм, смотрел с удовольствием", "Скучно и очень долго", "плохо"],
    "japanese": ["とても面白い映画でした。", "つまらない、時間の無駄。", "俳優の演技が素晴らしい"],
    "chinese": ["这部电影非常好看", "太无聊了，浪费时间", "演员的表演很出色"],
    "taiwan": ["這部電影非常好看", "太無聊了，浪費時間", "演員的表演很出色"],
    "korean": ["정말 재미있는 영화였습니다", "지루하고 너무 길어요", "배우들의 연기가 훌륭합니다"],
    "greek": ["Πολύ καλή ταινία, την προτείνω", "Βαρετή και πολύ μεγάλη", "κακή"],
    "hebrew": ["סרט מצוין, ממליץ לכולם", "משעמם וארוך מדי", "המשחק של השחקנים נהדר"],
    "arabic": ["فيلم جيد جدا", "ممل وطويل جدا", "أداء الممثلين رائع"],
    "french": ["Un très bon film, à voir absolument", "Ennuyeux et déçu", "La qualité est réelle"],
    "german": ["Ein schöner Film für Kinder", "viel zu länglich", "überzeugt völlig"],
    "quotes": ["It’s a “good” film – really", "don’t bother", "fine…"],
}
CASES = [
    ("russian", "cp1251"), ("russian", "koi8_r"), ("russian", "cp866"), ("russian", "iso8859_5"),
    ("japanese", "shift_jis"), ("japanese", "euc_jp"), ("chinese", "gbk"), ("taiwan", "big5"),
    ("korean", "euc_kr"), ("greek", "cp1253"), ("hebrew", "cp1255"), ("arabic", "cp1256"),
    ("french", "cp1252"), ("french", "latin-1"), ("german", "latin-1"), ("quotes", "cp1252"),
    ("russian", "utf-16"), ("japanese", "utf-16"), ("chinese", "utf-16-be"), ("korean", "utf-8"),
]  # fmt: skip


def rows(language: str, count: int, plain: float) -> list[str]:
    """Sentences, a share of them without any other letter than ASCII."""
    draw = random.Random(language)
    return [
        "nothing special here" if draw.random() < plain else draw.choice(SENTENCES[language])
        for _ in range(count)
    ]


def encoded(texts: list[str], labels: list[str], codec: str) -> bytes:
    lines = [f'{i},"{text}",{label}\r\n' for i, (text, label) in enumerate(zip(texts, labels))]
    return "".join(["id,text,label\r\n", *lines]).encode(codec)


def written(path: Path, texts: list[str], codec: str) -> bytes:
    data = encoded(texts, ["ham" if i % 3 else "spam" for i in range(len(texts))], codec)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize(("language", "codec"), CASES)
@pytest.mark.parametrize(("count", "plain"), [(30, 0.0), (400, 0.95)])
def test_text_is_read_and_every_other_byte_comes_back(language, codec, count, plain, tmp_path):
    texts = rows(language, count, plain)
    if codec == "utf-16-be":
        texts = [f"{text} {'and plain words' * 5}" for text in texts]  # no mark: zeros must tell
    data = written(tmp_path / "a.csv", texts, codec)
    table = read_table(tmp_path / "a.csv")
    assert table.strings("text") == texts
    made = export(table, [Decision(3, "relabel", "ham")], tmp_path / "b.csv", label="label")
    labels = ["ham" if i % 3 or i == 3 else "spam" for i in range(count)]
    assert made.read_bytes() == encoded(texts, labels, codec)
    assert export(table, [], tmp_path / "c.csv", label="label").read_bytes() == data


@pytest.mark.parametrize(("language", "codec"), [("russian", "cp1251"), ("chinese", "gbk")])
def test_json_lines_too(language, codec, tmp_path):
    texts = rows(language, 40, 0.5)
    lines = [f'{{"text": "{text}", "label": "{"ab"[i % 2]}"}}\n' for i, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_bytes("".join(lines).encode(codec))
    table = read_table(tmp_path / "a.jsonl")
    assert table.strings("text") == texts
    made = export(table, [Decision(1, "relabel", "a")], tmp_path / "b.jsonl", label="label")
    lines[1] = lines[1].replace('"b"}', '"a"}')
    assert made.read_bytes() == "".join(lines).encode(codec)


def test_a_guess_is_said_and_can_be_overruled(tmp_path):
    texts = rows("russian", 30, 0.0)
    written(tmp_path / "a.csv", texts, "cp1251")
    table = read_table(tmp_path / "a.csv")
    assert any("cp1251 is a guess" in note and "--encoding" in note for note in table.notes)
    told = read_table(tmp_path / "a.csv", encoding="koi8-r")
    assert told.strings("text") != texts
    assert not any("guess" in note for note in told.notes)
    written(tmp_path / "u.csv", texts, "utf-8")
    assert not any("guess" in note for note in read_table(tmp_path / "u.csv").notes)


def test_a_guess_that_does_not_write_back_its_bytes_is_not_taken(tmp_path):
    texts = rows("japanese", 40, 0.0)
    data = written(tmp_path / "a.csv", texts, "cp932")
    # NEC's row 13 and IBM's extension both hold Ⅰ: read, it could not be told which to write back.
    twice = data + b'40,"' + b"\xfa\x4a" + b'",ham\r\n'
    assert twice.decode("cp932").encode("cp932") != twice
    (tmp_path / "a.csv").write_bytes(twice)
    table = read_table(tmp_path / "a.csv")
    assert export(table, [], tmp_path / "b.csv", label="label").read_bytes() == twice
    changed = export(table, [Decision(3, "remove")], tmp_path / "c.csv", label="label")
    lines = twice.split(b"\r\n")
    assert changed.read_bytes() == b"\r\n".join([*lines[:4], *lines[5:]])


@pytest.mark.parametrize(
    "codec", ["rot13", "hex", "zlib", "bz2", "base64", "uu", "quopri", "rot-13"]
)
def test_what_is_no_encoding_of_text_is_refused(codec):
    with pytest.raises(ExemplaError, match="is not a text encoding"):
        _sniff_encoding(b"a,b\n1,2\n", codec, "a.csv")


@pytest.mark.parametrize("name", ["", "utf-9", "\x00", "../x", "idna", "undefined", "punycode"])
def test_strange_names_of_encodings_are_one_sentence(name):
    with pytest.raises(ExemplaError) as refused:
        _sniff_encoding("ä,b\n1,2\n".encode("latin-1"), name, "a.csv")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("codec", sorted(set(encodings.aliases.aliases.values())))
def test_every_codec_of_python_reads_exactly_or_refuses(codec):
    for data in (
        b"a,b\n1,2\n",
        "ä,b\n1,2\n".encode("latin-1"),
        b"\xff\xfea\x00,\x00",
        b"\\x41~{+A",
    ):
        try:
            encoding, text = _sniff_encoding(data, codec, "a.csv")
        except ExemplaError:
            continue
        assert encoding.encode(text) == data
