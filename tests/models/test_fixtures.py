"""The fixture models do what the tests that use them rely on."""

import itertools
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.support.forward import greedy, prompt_logits
from tests.support.models import RAND_VOCAB, Piece, TokenizerKind, rand_model, script_model, script_w_model
from tests.support.parity import load, reference_model
from tests.support.tokenizer_files import BOS, TokenizerOptions


@pytest.mark.parametrize("std", [0.2, 0.3])
def test_rand_depends_on_far_back_tokens(std: float, tmp_path: Path) -> None:
    """Power check of RAND: another token 0 of a 200-token prompt changes the greedy continuation of 90 % of 50
    prompts, and the median gap between the two best logprobs is above 0.05."""
    prompts = torch.randint(0, RAND_VOCAB, (50, 200), generator=torch.Generator().manual_seed(0))
    changed = prompts.clone()
    changed[:, 0] = (changed[:, 0] + 1) % RAND_VOCAB
    both = torch.cat([prompts, changed])
    model = reference_model(rand_model(tmp_path, std=std))
    output = model.generate(
        both,
        attention_mask=torch.ones_like(both),
        max_new_tokens=10,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    before, after = output.sequences[:50, 200:], output.sequences[50:, 200:]
    assert float((before != after).any(1).float().mean()) >= 0.9
    best = torch.cat(output.logits).topk(2).values
    assert float((best[:, 0] - best[:, 1]).median()) > 0.05


def test_rand_tokenizer_covers_any_text(tmp_path: Path) -> None:
    rand_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == RAND_VOCAB
    for text in ("", " the sun is high ", "naïve 漢字 😀\n", "a<|eos|>b"):
        ids = tokenizer.encode(text).ids
        assert ids[0] == tokenizer.token_to_id(BOS)
        assert tokenizer.decode(ids[1:], skip_special_tokens=False) == text
    assert len(tokenizer.encode(" the sun").ids) < 1 + len(" the sun")  # merges are in use


@pytest.mark.parametrize("size", [300, 500])
def test_rand_tokenizer_may_be_smaller_than_the_model(size: int, tmp_path: Path) -> None:
    rand_model(tmp_path, tokenizer_size=size, options=TokenizerOptions(add_bos=False))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == size
    assert tokenizer.encode("a").ids == [ord("a")]


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_script_types_its_pieces_and_ends(kind: TokenizerKind, tmp_path: Path) -> None:
    pieces: list[Piece] = ["alpha", " be", "ta ga", *(bytes([byte]) for byte in "é".encode()), " delta", "漢字"]
    script = script_model(tmp_path, pieces, kind)
    model = load(script.path)
    for prompt in ([0], [65, 66], list(range(200))):
        assert greedy(model, prompt, len(pieces) + 1) == [*script.piece_ids, script.eos_id]
    assert script.tokenizer.decode(list(script.piece_ids)) == "alpha beta gaé delta漢字"
    best = prompt_logits(model, script.piece_ids).topk(2).values
    torch.testing.assert_close(best[:, 0] - best[:, 1], torch.full((len(pieces),), 20.0))


def test_script_refuses_a_piece_with_two_successors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a' is followed by two different pieces"):
        script_model(tmp_path, ["a", "b", "a", "c"])
    script = script_model(tmp_path, ["a", "b", "c"])
    assert len(set(script.piece_ids)) == 3


def test_script_may_have_rows_beyond_the_tokenizer(tmp_path: Path) -> None:
    script = script_model(tmp_path, ["x", "y"], vocab_rows=300)
    assert load(script.path).config.vocab_size == 300
    assert greedy(load(script.path), [299], 3) == [*script.piece_ids, script.eos_id]


def test_script_w_has_weak_margins(tmp_path: Path) -> None:
    script = script_w_model(tmp_path, best={"p": "a", "a": "a"}, second={"p": "g", "a": "g"})
    a, g, p, x = (ord(letter) for letter in "agpx")
    assert script.piece_ids == (p, a)
    logits = prompt_logits(load(script.path), [a, x, p])
    expected = torch.zeros(3, logits.shape[1])
    for row, best in itertools.product((0, 2), (True, False)):
        expected[row, a if best else g] = 2.0 if best else 1.0
    torch.testing.assert_close(logits, expected)
