"""Beam search without memory: against a second writing of the rules, and against ``transformers`` itself."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from octavo.core.beam_search import MAX_BEAM_WIDTH, BeamSearch, BeamSearchParams, Hypothesis
from octavo.core.errors import InvalidRequestError
from tests.support.naive_beam_search import Search, naive_beam_search

VOCAB_SIZE = 24
PENALTIES = (-1.0, 0.0, 0.6, 1.0, 2.0)
EARLY_STOPPING = (False, True, "never")


def _logprobs(seed: int, output: Sequence[int]) -> list[float]:
    """The table of random logprobs after an output, over the whole vocabulary; far-back tokens count. Some are flat,
    some have one clear favourite, so that searches end at different lengths."""
    rng = random.Random(repr((seed, list(output))))
    spread = rng.choice([0.5, 2.0, 6.0])
    return [-rng.random() * spread - 0.01 for _ in range(VOCAB_SIZE)]


def _best(seed: int, output: Sequence[int], count: int) -> list[tuple[int, float]]:
    table = _logprobs(seed, output)
    return [(token_id, table[token_id]) for token_id in sorted(range(VOCAB_SIZE), key=lambda i: -table[i])[:count]]


def _search(seed: int, search: Search) -> list[Hypothesis]:
    """Drive ``BeamSearch`` over the table, beam by beam."""
    params = BeamSearchParams(
        search.width,
        search.max_tokens,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )
    beams = BeamSearch(params, search.eos, search.max_tokens)
    outputs: list[tuple[int, ...]] = [()]
    while True:
        going = beams.advance([_best(seed, output, beams.num_candidates) for output in outputs])
        if not going:
            return beams.finished
        outputs = [(*outputs[beam], token_id) for beam, token_id in going]
        assert len(outputs) == len(set(outputs)) == search.width


def _random_search(rng: random.Random, num_eos: int, early_stopping: bool | str, length_penalty: float) -> Search:
    eos = frozenset(rng.sample(range(VOCAB_SIZE), num_eos))
    return Search(rng.randint(1, 5), rng.randint(1, 9), eos, length_penalty, early_stopping)


@pytest.mark.parametrize("early_stopping", EARLY_STOPPING)
@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("num_eos", [0, 1, 3])
def test_equals_the_naive_search(num_eos: int, length_penalty: float, early_stopping: bool | str) -> None:
    for seed in range(25):
        search = _random_search(random.Random(seed), num_eos, early_stopping, length_penalty)
        found = _search(seed, search)
        expected = naive_beam_search(lambda output, seed=seed: _best(seed, output, VOCAB_SIZE), search)  # type: ignore[misc]
        assert [hypothesis.token_ids for hypothesis in found] == [result.token_ids for result in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([result.score for result in expected])
        for hypothesis in found:
            total = sum(
                _logprobs(seed, hypothesis.token_ids[:at])[token_id] for at, token_id in enumerate(hypothesis.token_ids)
            )
            assert hypothesis.cumulative_logprob == pytest.approx(total)
            assert hypothesis.is_stopped == (hypothesis.token_ids[-1] in search.eos)
            assert search.eos.isdisjoint(hypothesis.token_ids[:-1])


def test_the_tables_tell_the_rules_apart() -> None:
    """The power check of the test above: each setting changes what is found, and EOS ends sequences at many lengths."""
    searches = [Search(3, 9, frozenset({1, 2, 3}), penalty, early) for penalty in PENALTIES for early in EARLY_STOPPING]
    found = [tuple(tuple(_search(seed, search)) for seed in range(60)) for search in searches]
    assert len(set(found)) >= 2 * len(PENALTIES)
    for rule in range(len(EARLY_STOPPING)):
        others = {found[at] for at in range(len(found)) if at % len(EARLY_STOPPING) != rule}
        assert any(found[at] not in others for at in range(rule, len(found), len(EARLY_STOPPING)))
    lengths = {len(hypothesis.token_ids) for results in found for result in results for hypothesis in result}
    assert lengths == set(range(1, 10))


def _table_model(seed: int, prompt_length: int) -> Any:
    """A model for ``transformers`` whose logits are the table's logprobs."""
    import torch
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class TableModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
        config_class = PretrainedConfig
        _supports_cache_class = False

        def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
            rows = [_logprobs(seed, row[prompt_length:]) for row in input_ids.tolist()]
            return CausalLMOutput(logits=torch.tensor(rows)[:, None])

        def prepare_inputs_for_generation(self, input_ids: Any, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

    model = TableModel(PretrainedConfig(vocab_size=VOCAB_SIZE, is_encoder_decoder=False))
    model.anchor = torch.nn.Parameter(torch.zeros(()))
    return model


def _normalised(seed: int, output: Sequence[int], count: int) -> list[tuple[int, float]]:
    """The same table as ``transformers`` sees it: its logits go through a softmax."""
    import torch

    logprobs = torch.log_softmax(torch.tensor(_logprobs(seed, output)), 0)
    best = logprobs.topk(count)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


@pytest.mark.parametrize("early_stopping", EARLY_STOPPING)
@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_equals_transformers(
    length_penalty: float, early_stopping: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(f"{__name__}._best", _normalised, raising=True)
    prompt = [5, 6, 7]
    for seed in range(4):
        search = _random_search(random.Random(seed), (0, 1, 3, 2)[seed], early_stopping, length_penalty)
        search = search._replace(width=search.width + 1)  # with one beam it does not search
        output = _table_model(seed, len(prompt)).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=search.width,
            num_return_sequences=search.width,
            max_new_tokens=search.max_tokens,
            eos_token_id=sorted(search.eos) or None,
            pad_token_id=VOCAB_SIZE - 1,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            do_sample=False,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        found = _search(seed, search)
        sequences = [row[len(prompt) :] for row in output.sequences.tolist()]
        assert [list(h.token_ids) for h in found] == [
            row[: len(h.token_ids)] for h, row in zip(found, sequences, strict=True)
        ]
        padding = [row[len(h.token_ids) :] for h, row in zip(found, sequences, strict=True)]
        assert {token_id for row in padding for token_id in row} <= {VOCAB_SIZE - 1}
        assert [h.score for h in found] == pytest.approx(output.sequences_scores.tolist(), rel=1e-4)


def test_ignored_eos_is_a_token_like_others() -> None:
    params = BeamSearchParams(2, 3, ignore_eos=True)
    search = BeamSearch(params, frozenset({1}), 3)
    assert search.num_candidates == 4
    assert len(search.advance([[(1, -0.1), (2, -0.2), (3, -0.3), (4, -0.4)]])) == 2
    assert search.finished == []


def test_candidates_suffice_where_every_eos_is_among_the_best() -> None:
    """Three EOS ids lead after each of two beams, and still two beams go on."""
    search = BeamSearch(BeamSearchParams(2, 9, early_stopping="never"), frozenset({0, 1, 2}), 9)
    assert search.num_candidates == 8
    best = [(token_id, -0.1 * (token_id + 1)) for token_id in range(8)]
    assert search.advance([best]) == [(0, 3), (0, 4)]
    assert [hypothesis.token_ids for hypothesis in search.finished] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beam_width", 0, "beam_width must be a whole number from 1 to 64, got 0"),
        ("beam_width", MAX_BEAM_WIDTH + 1, "from 1 to 64, got 65"),
        ("beam_width", True, "got True"),
        ("beam_width", 2.0, "got 2.0"),
        ("max_tokens", 0, "max_tokens must be a whole number of at least 1, got 0"),
        ("max_tokens", "5", "got '5'"),
        ("temperature", 0.5, "temperature must be 0, got 0.5"),
        ("temperature", False, "temperature must be 0, got False"),
        ("length_penalty", 11, r"length_penalty must be a number in \[-10, 10\], got 11"),
        ("length_penalty", float("nan"), "got nan"),
        ("length_penalty", True, "got True"),
        ("length_penalty", None, "got None"),
        ("early_stopping", "always", "early_stopping must be true, false or \"never\", got 'always'"),
        ("early_stopping", 1, "got 1"),
        ("early_stopping", None, "got None"),
    ],
)
def test_what_cannot_be_searched_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        BeamSearchParams(**{"beam_width": 4, name: value})  # type: ignore[arg-type]
    assert caught.value.param == name
