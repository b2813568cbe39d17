from __future__ import annotations

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from posttrain.training import cpu_head
from posttrain.training.cpu_head import use_cpu_head
from posttrain.training.document_masking import make_collator
from tests.training.test_document_masking import packs
from tests.training.tiny import attention_model

OUTPUTS = ("log_probs", "entropy", "is_top1")


@pytest.mark.parametrize("layout", ["varlen", "block_diagonal", "unpacked"])
def test_it_gives_the_numbers_and_gradients_of_trls_head(layout: str):
    results = []
    for ours in (False, True):
        model = attention_model()
        add_fused_lm_head(model, outputs=OUTPUTS)
        if ours:
            assert use_cpu_head(model)
        out = model(**make_collator(layout, 0)(packs()), fused_lm_head=True)
        out.loss.backward()
        results.append((out, {n: p.grad for n, p in model.named_parameters()}))
    (theirs, their_grads), (ours, our_grads) = results
    assert float(ours.loss.detach()) == pytest.approx(float(theirs.loss.detach()), abs=1e-6)
    for name in (*OUTPUTS, "label_mask"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert torch.allclose(a.float(), b.float(), atol=1e-5), name
    assert all(torch.allclose(our_grads[n], their_grads[n], atol=1e-6) for n in our_grads)


def test_chunks_give_the_same_numbers_and_hold_few_logits(monkeypatch: pytest.MonkeyPatch):
    results, sizes = [], []
    for limit in (1 << 24, 5 * 64):  # all at once; five positions of 64 ids at a time
        monkeypatch.setattr(cpu_head, "CHUNK_LOGITS", limit)
        model = attention_model()
        add_fused_lm_head(model, outputs=OUTPUTS)
        use_cpu_head(model)
        seen: list[int] = []
        model.lm_head.register_forward_hook(lambda *given, seen=seen: seen.append(len(given[2])))
        out = model(**make_collator("block_diagonal", 0)(packs()), fused_lm_head=True)
        out.loss.backward()
        results.append((out, {n: p.grad for n, p in model.named_parameters()}))
        sizes.append(seen)
    (whole, whole_grads), (chunked, chunked_grads) = results
    assert len(sizes[0]) == 1
    assert max(sizes[1]) == 5
    assert sum(sizes[1]) == 2 * sizes[0][0]  # once forward, once for the gradient
    for name in (*OUTPUTS, "label_mask", "loss"):
        a, b = getattr(whole, name), getattr(chunked, name)
        assert torch.allclose(a.float(), b.float(), atol=1e-6), name
    assert all(torch.allclose(whole_grads[n], chunked_grads[n], atol=1e-6) for n in whole_grads)


def test_a_batch_with_nothing_trained_gives_a_differentiable_zero():
    model = attention_model()
    add_fused_lm_head(model, outputs=OUTPUTS)
    use_cpu_head(model)
    rows = [{"input_ids": [0, 0], "labels": [-100, -100], "seq_lengths": [2]}]
    out = model(**make_collator("block_diagonal", 0)(rows), fused_lm_head=True)
    out.log_probs.sum().backward()
    assert float(out.loss.detach()) == 0.0


def test_models_that_scale_their_logits_keep_trls_head():
    model = attention_model()
    model.config.logits_scaling = 8.0
    assert use_cpu_head(model) is False
