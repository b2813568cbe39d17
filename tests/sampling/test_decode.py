"""Decoding many prompts together writes what each alone would, and forgets and mixes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.errors import DataError
from posttrain.rollouts import Parameters
from posttrain.sampling.engines.decode import PREFILL, decode, prefill_positions
from posttrain.sampling.engines.transformers import TransformersEngine, decode_in_thread
from posttrain.sampling.sampler import Budget, EngineOutput, EngineRequest
from tests.sampling.small_models import CONFIGS, full_logps, plain_greedy, small_model

STOPS = (2, 5, 77)
CLOSE, NEWLINE = 9, 10


@pytest.fixture(scope="module", params=[*CONFIGS, "stories260k"])
def model(request):
    if request.param in CONFIGS:
        return small_model(request.param)
    folder = request.getfixturevalue("shared") / "models" / request.param
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def attention():
    return small_model("attention")


def prompts(count: int = 11) -> list[tuple[int, ...]]:
    """Of unlike lengths, some of them equal; ids from 0 on, whatever pads a batch."""
    rng = random.Random(1)
    made = [
        tuple(rng.randrange(256) for _ in range(rng.choice([1, 3, 9, 17, 40])))
        for _ in range(count - 3)
    ]
    return made + made[:3]


def ask(prompt, seed: int = 0, *, budget: Budget | None = None, **parameters) -> EngineRequest:
    given = {"max_tokens": 24, **parameters}
    return EngineRequest(tuple(prompt), Parameters(**given), seed, STOPS, budget)


def test_greedy_equals_plain_generate(model):
    asked = [ask(p, temperature=0.0, max_tokens=4 + k) for k, p in enumerate(prompts())]
    want = [plain_greedy(model, r.ids, stops=STOPS, limit=r.parameters.max_tokens) for r in asked]
    assert len(set(want)) > 6, "the prompts must not all lead to one loop"
    for batch_size in (4, 11):
        found = decode(model, asked, batch_size=batch_size)
        assert [one.ids for one in found] == want
        assert [one.finish == "stop" for one in found] == [ids[-1] in STOPS for ids in want]
        assert all(one.logps is None for one in found)


def test_log_probabilities_equal_a_full_pass_and_a_seed_decides(model):
    asked = [ask(p, seed=k, logps=True, max_tokens=9) for k, p in enumerate(prompts())]
    found = decode(model, asked, batch_size=5)
    assert decode(model, asked, batch_size=5) == found
    others = decode(
        model, [ask(r.ids, seed=100 + r.seed, max_tokens=9) for r in asked], batch_size=5
    )
    assert sum(a.ids != b.ids for a, b in zip(found, others, strict=True)) > 7
    for request, one in zip(asked, found, strict=True):
        truth = full_logps(model, request.ids, one.ids)
        truth = truth[range(len(one.ids)), list(one.ids)].tolist()
        assert one.logps == pytest.approx(truth, abs=1e-4)


def test_log_probabilities_are_those_sampled_from(attention):
    parameters = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "logps": True}
    asked = [ask(p, seed=k, **parameters) for k, p in enumerate(prompts(6))]
    for request, one in zip(asked, decode(attention, asked, batch_size=6), strict=True):
        logps = full_logps(attention, request.ids, one.ids) / 0.7
        for row, token, logp in zip(logps, one.ids, one.logps or (), strict=True):
            kept = row.topk(20).values.log_softmax(-1)
            before = kept.exp().cumsum(0) - kept.exp()
            kept = kept[before < 0.8].log_softmax(-1)
            rank = int((row > row[token]).sum())
            assert logp == pytest.approx(float(kept[rank]), abs=1e-4)


@pytest.mark.parametrize("name", ["attention", "hybrid"])
def test_a_sample_does_not_depend_on_its_batch(name):
    model = small_model(name, spread=0.05)
    kinds = [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.3}, {"temperature": 1.5}, {}]
    asked = [ask(p, seed=k, max_tokens=9, **kinds[k % 5]) for k, p in enumerate(prompts())]
    alone = [decode(model, [request], batch_size=1)[0].ids for request in asked]
    assert [one.ids for one in decode(model, asked, batch_size=11)] == alone
    backwards = decode(model, asked[::-1], batch_size=4)
    assert [one.ids for one in backwards[::-1]] == alone


class Passes:
    """Notes the shape of each forward pass."""

    def __init__(self, model, monkeypatch) -> None:
        self.shapes: list[tuple[int, int]] = []
        forward = model.forward

        def noted(input_ids, **others):
            self.shapes.append(tuple(input_ids.shape))
            return forward(input_ids=input_ids, **others)

        noted.__signature__ = __import__("inspect").signature(forward)
        monkeypatch.setattr(model, "forward", noted)


def test_equal_prompts_are_read_once_and_ended_rows_make_room(attention, monkeypatch):
    passes = Passes(attention, monkeypatch)
    asked = [ask(range(100, 130), seed=k, max_tokens=1 + 3 * k) for k in range(8)]
    decode(attention, asked, batch_size=8)
    assert passes.shapes[0] == (1, 30)
    rows = [count for count, width in passes.shapes[1:] if width == 1]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 8
    assert rows[-1] < 3
    passes.shapes.clear()
    decode(attention, [*asked, ask(range(7), seed=9, max_tokens=5)], batch_size=4)
    assert max(count for count, _ in passes.shapes) <= 4


def test_limits_are_held(attention):
    (one,) = decode(attention, [ask(range(9), max_tokens=0)], batch_size=1)
    assert (one.ids, one.finish, one.error) == ((), "length", None)
    context = attention.config.max_position_embeddings
    long = [ask([7] * (context - 3), max_tokens=24), ask([7] * context), ask([7, 8])]
    cut, full, short = decode(attention, long, batch_size=3)
    assert len(cut.ids) <= 3
    assert full.error is not None
    assert "context" in full.error
    assert short.ids
    assert decode(attention, [], batch_size=4) == []


@pytest.mark.parametrize("budget", [1, 6, 15])
def test_a_budget_is_cut_at_exactly_n_tokens(attention, budget):
    def closing(ids):
        return (NEWLINE, CLOSE, NEWLINE) if ids[-1] % 2 else (CLOSE, NEWLINE)

    limit = Budget(budget, CLOSE, closing)
    asked = [
        ask(p, seed=k, temperature=0.0, budget=limit, logps=True) for k, p in enumerate(prompts(5))
    ]
    found = decode(attention, asked, batch_size=4)
    assert any(one.forced for one in found)
    for request, one in zip(asked, found, strict=True):
        head = plain_greedy(attention, request.ids, stops=(*STOPS, CLOSE), limit=budget)
        assert one.ids[: len(head)] == head
        if head[-1] in (*STOPS, CLOSE):
            assert one.forced is None
        else:
            assert one.forced == (budget, budget + len(closing(head)))
            assert one.ids[slice(*one.forced)] == closing(head)
            assert (one.logps or ())[slice(*one.forced)] == (0.0,) * len(closing(head))
            head = (*head, *closing(head))
        if head[-1] not in STOPS:
            left = 24 - len(head)
            tail = plain_greedy(attention, (*request.ids, *head), stops=STOPS, limit=left)
            assert one.ids[len(head) :] == tail


def test_a_budget_counts_from_the_tag_that_the_model_opens(attention):
    free = plain_greedy(attention, prompts()[4], stops=STOPS, limit=12)
    opened = free.index(free[3]) + 1
    limit = Budget(2, CLOSE, lambda _: (CLOSE,), open_id=free[3])
    asked = ask(prompts()[4], temperature=0.0, max_tokens=12, budget=limit)
    (one,) = decode(attention, [asked], batch_size=1)
    assert one.ids[: opened + 2] == free[: opened + 2]
    assert one.forced == (opened + 2, opened + 3)
    never = Budget(1, CLOSE, lambda _: (CLOSE,), open_id=250)
    assert 250 not in free
    asked = ask(prompts()[4], temperature=0.0, max_tokens=12, budget=never)
    assert decode(attention, [asked], batch_size=1)[0].ids == free
    # a limit cuts a forced closing, too
    limit = Budget(4, 250, lambda _: (250,) * 6)
    (one,) = decode(attention, [ask(prompts()[1], max_tokens=7, budget=limit)], batch_size=1)
    assert (one.ids[4:], one.forced, one.finish) == ((250,) * 3, (4, 7), "length")


def test_progress_counts_every_token_and_a_stop_is_heeded(attention):
    told: list[int] = []
    found = decode(attention, [ask(p) for p in prompts()], batch_size=4, progress=told.append)
    assert sum(told) == sum(len(one.ids) for one in found)
    asked = iter([False, False, True])
    with pytest.raises(InterruptedError):
        decode(attention, [ask(p) for p in prompts()], batch_size=4, stop=lambda: next(asked))


def test_a_cancelled_decoding_ends_without_a_traceback(attention):
    reported: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        begun = asyncio.Event()
        decoding = asyncio.ensure_future(
            decode_in_thread(
                attention,
                [ask(p, max_tokens=2000) for p in prompts()],
                batch_size=4,
                around=contextlib.nullcontext,
                progress=lambda _: begun.set(),
            )
        )
        await begun.wait()
        decoding.cancel()
        await asyncio.wait((decoding,))
        assert decoding.cancelled()
        del decoding
        # asyncio reports an exception that nobody has read when its task is collected
        gc.collect()

    asyncio.run(run())
    assert not reported


def test_logits_that_are_no_numbers_are_refused():
    broken = small_model("attention")
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(DataError, match="not finite"):
            decode(broken, [ask((4, 5), temperature=temperature)], batch_size=1)


def test_an_engine_hands_outputs_over_while_others_go_on(attention):
    asked = [ask(p, seed=k, max_tokens=2 + 6 * k) for k, p in enumerate(prompts(6))]
    engine = TransformersEngine(attention, weights="w", batch_size=6)
    ended: list[int] = []
    written: list[int] = []
    before_the_last: list[int] = []

    def on_done(number: int, output: EngineOutput) -> None:
        assert output.ids
        ended.append(number)

    def progress(new: int) -> None:
        written.append(new)
        before_the_last.append(len(ended))

    asyncio.run(engine.generate_each(asked, on_done=on_done, progress=progress))
    assert sorted(ended) == list(range(6))
    assert 0 < before_the_last[0] < 6
    outputs = asyncio.run(engine.generate(asked))
    assert sum(written) == sum(len(output.ids) for output in outputs)


def test_passes_over_prompts_are_short_where_a_layer_is_wide(attention):
    assert prefill_positions(attention) == PREFILL
    wide = small_model("attention")
    wide.config.intermediate_size = 2048
    assert prefill_positions(wide) == 1024
