"""ShareGPT: how the file is read, what is counted, what is left out."""

import json
from pathlib import Path

import pytest

from octavo.bench import sharegpt
from octavo.bench.sharegpt import Conversation, Turn, count_tokens, draw_sharegpt, load_conversations, sharegpt_lengths
from octavo.bench.traces import Lengths
from octavo.core.errors import ConfigurationError
from octavo.loading.gguf_tokenizer import gguf_tokenizer
from octavo.loading.pull import pull_dataset

QUESTION, ANSWER = "How do you fold a sheet into eight leaves?", "Fold it three times, each time across the last fold."


def write(folder: Path, *conversations: list[tuple[str, str]]) -> Path:
    """A file as ShareGPT's is laid out."""
    file = folder / "conversations.json"
    entries = [
        {"id": f"c{number}", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}
        for number, turns in enumerate(conversations)
    ]
    file.write_text(json.dumps(entries, indent=2, ensure_ascii=False), encoding="utf-8")
    return file


def test_conversations(tmp_path: Path) -> None:
    file = write(tmp_path, [("human", QUESTION), ("gpt", "Grüße, 世界")], [], [("gpt", ANSWER)])
    assert load_conversations(file) == [
        Conversation("c0", (Turn("human", QUESTION), Turn("gpt", "Grüße, 世界"))),
        Conversation("c2", (Turn("gpt", ANSWER),)),
    ]


def test_a_conversation_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, [("human", QUESTION)], [("human", QUESTION)], [("human", QUESTION), ("gpt", ANSWER)])
    whole = load_conversations(file)
    text = file.read_text(encoding="utf-8")
    file.write_text(text[: text.index(ANSWER) + 9], encoding="utf-8")
    assert load_conversations(file) == whole[:2]


@pytest.mark.parametrize("text", ["", "{}", "[[1]]", '[{"id": 1}]', "no JSON]"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"other\.json is not laid out as ShareGPT .*: each needs id"):
        load_conversations(file)


def test_lengths_are_those_of_the_first_question_and_answer(tmp_path: Path, smollm2_path: Path) -> None:
    backend = gguf_tokenizer(smollm2_path).backend
    word = " word"
    assert count_tokens([word, word * 9], backend) == [1, 9]
    file = write(
        tmp_path,
        [("human", QUESTION), ("gpt", ANSWER), ("human", "And then?"), ("gpt", ANSWER * 2)],
        [("gpt", ANSWER), ("human", QUESTION), ("gpt", ANSWER)],  # a piece that begins with an answer
        [("human", QUESTION)],
        [("human", word * 3), ("gpt", ANSWER)],
        [("human", word * 4), ("gpt", word * 4)],
        [("human", QUESTION), ("gpt", word * 3)],
        [("human", word * 1025), ("gpt", ANSWER)],
        [("human", word * 1024), ("gpt", word * 1025)],
        [("human", word * 1024), ("gpt", word * 1024)],
    )
    expected = [Lengths(*count_tokens([QUESTION, ANSWER], backend)), Lengths(4, 4), Lengths(1024, 1024)]
    assert sharegpt_lengths(file=file) == expected


def test_tokens_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, [("human", QUESTION), ("gpt", ANSWER)])
    first = sharegpt_lengths(file=file)
    with monkeypatch.context() as patch:
        patch.setattr(sharegpt, "count_tokens", lambda *_: pytest.fail("counted again"))
        assert sharegpt_lengths(file=file) == first
    assert len(list(tmp_path.iterdir())) == 2
    write(tmp_path, [("human", QUESTION), ("gpt", ANSWER)], [("human", ANSWER), ("gpt", QUESTION)])
    assert sharegpt_lengths(file=file) == [*first, first[0][::-1]], "other texts are counted anew"


def test_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [Lengths(prompt, 10 * prompt) for prompt in range(4, 40)]
    monkeypatch.setattr(sharegpt, "sharegpt_lengths", lambda: lengths)
    drawn = draw_sharegpt(20, seed=1)
    assert len(set(drawn)) == 20
    assert drawn == draw_sharegpt(20, seed=1) != draw_sharegpt(20, seed=2)
    assert sorted(draw_sharegpt(8, seed=0, short=True)) == lengths[:8], "outputs of up to 112 tokens"
    with pytest.raises(ConfigurationError, match="ShareGPT has 8 such requests, but 9 were asked for"):
        draw_sharegpt(9, seed=0, short=True)


@pytest.mark.slow
def test_the_data_set_of_the_index() -> None:
    """All but the conversation at the cut, and 126 without turns."""
    assert pull_dataset("sharegpt", quiet=True).stat().st_size == 125_509_632
    conversations = load_conversations()
    assert len(conversations) == 17_545
    assert sum(len(conversation.turns) for conversation in conversations) == 129_071
    assert sum(conversation.first_exchange is not None for conversation in conversations) == 11_135


def test_unknown_data_set() -> None:
    with pytest.raises(ConfigurationError, match="no built-in dataset is named 'nonesuch'; there are: sharegpt"):
        pull_dataset("nonesuch")
