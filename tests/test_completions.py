"""Prompts and completions as data: which tokens count, and what is refused."""

from __future__ import annotations

import pytest

from exempla import Completions, ExemplaError, ExemplaWarning

pytest.importorskip("transformers")

from tests.language.sums import tokenizer


@pytest.mark.parametrize(
    ("given", "pieces", "counted"),
    [
        (("1+1=", "2"), "1+1=2<|>", [4, 5]),
        ({"prompt": "1+1=", "completion": "2"}, "1+1=2<|>", [4, 5]),
        ({"text": "1+1=2"}, "1+1=2<|>", [1, 2, 3, 4, 5]),
        ({"prompt": None, "completion": "12"}, "12<|>", [1, 2]),
        ("1+1=2", "1+1=2<|>", [1, 2, 3, 4, 5]),
    ],
)
def test_every_form_of_a_text(given, pieces, counted):
    data = Completions(tokenizer(), [given])
    assert "".join(data.pieces(0)) == pieces
    assert data.counted(0) == counted
    labels = data[0]["labels"]
    assert [i for i, label in enumerate(labels) if label != -100 and i > 0] == counted


def test_the_end_belongs_to_the_completion_unless_told_otherwise():
    assert Completions(tokenizer(), [("1+", "1")], end=False)[0]["input_ids"] == [2, 11, 2]


def test_prompts_lose_their_beginning_and_completions_their_end():
    with pytest.warns(ExemplaWarning, match="2 of 3 texts are longer than 4 tokens"):
        data = Completions(
            tokenizer(), [("123456", "78"), ("1", "23456"), ("1", "2")], max_length=4
        )
    assert "".join(data.pieces(0)) == "678<|>"
    assert "".join(data.pieces(1)) == "2345"
    assert data.counted(1) == [1, 2, 3]


def test_long_texts_in_pieces_count_every_token_once():
    given = [("12", "3456789"), ("1", "2"), "123456"]
    data = Completions(tokenizer(), given, max_length=4, long="pieces")
    assert data.origin == [0, 0, 0, 0, 1, 2, 2, 2]
    assert ["".join(data.pieces(row)) for row in range(4)] == ["1234", "3456", "5678", "789<|>"]
    assert data.texts[1] == ("34", "56")
    for text, (prompt, completion) in enumerate([*given[:2], ("", given[2])]):
        rows = [row for row, origin in enumerate(data.origin) if origin == text]
        counted = [data[row]["labels"] for row in rows]
        tokens = [x for labels in counted for x in labels if x != -100]
        whole = Completions(tokenizer(), [(prompt, completion)])[0]["labels"]
        assert tokens == [x for x in whole if x != -100]
        assert all(len(labels) <= 4 for labels in counted)
    with pytest.raises(ExemplaError, match="long is 'words'"):
        Completions(tokenizer(), ["12"], long="words")


def test_one_text_per_token_and_they_are_all_of_it():
    data = Completions(tokenizer(), [("1+1=", "2")])
    each = data.token_by_token(0)
    assert [row["labels"] for row in each] == [
        [-100, -100, -100, -100, 3, -100],
        [-100, -100, -100, -100, -100, 0],
    ]


def test_letters_spread_over_tokens_are_shown_whole():
    class Bytes:
        def __call__(self, text, **options):
            return {"input_ids": list(text.encode())}

        def decode(self, ids):
            return bytes(ids).decode(errors="ignore")

    data = Completions(Bytes(), ["é!"])
    assert data.pieces(0) == ("", "é", "!")


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([], "no texts"),
        ("1+1", "in a list"),
        ([("1+1=", "")], "completion of text 0 is empty"),
        ([3], "Text 0 is int"),
        ([("1", "2"), ("1", None)], "Text 1 has a part that is not a string"),
        ([{"question": "1"}], "Text 0 is dict"),
        ([{"messages": [{"role": "user", "content": "1"}]}], "no chat template"),
        ([{"messages": []}], "messages without role and content"),
    ],
)
def test_what_is_no_text_is_named(texts, why):
    with pytest.raises(ExemplaError, match=why):
        Completions(tokenizer(), texts)


def test_a_single_token_has_nothing_before_it():
    with pytest.raises(ExemplaError, match="Text 0 is a single token"):
        Completions(tokenizer(), ["1"], end=False)


@pytest.mark.parametrize("length", [1, 2.5, True])
def test_lengths_that_make_no_sense(length):
    with pytest.raises(ExemplaError, match="max_length"):
        Completions(tokenizer(), ["12"], max_length=length)


def test_no_tokenizer():
    with pytest.raises(ExemplaError, match="is not a tokenizer"):
        Completions("gpt2", ["12"])


def test_conversations_by_the_tokenizers_own_template():
    speaker = type(tokenizer())(
        tokenizer_object=tokenizer().backend_tokenizer,
        eos_token="<|>",
        chat_template="{% for m in messages %}{{ m.content }}={% endfor %}",
    )
    talk = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    data = Completions(speaker, [{"messages": talk}])
    assert data.texts == [("1+1=", "2")]
