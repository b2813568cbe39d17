"""Balance of experts, through forward hooks on the routers: a loss term, and a moving bias.

`ExpertBalance` is the sequence-wise term of DeepSeek-V3 (arXiv 2412.19437, Eq. 17-20): for a layer
and a sequence of T tokens, with K of E experts chosen (a bias and group limits count):

    f_i = E / (K T) * #{t : expert i chosen for token t}
    P_i = 1/T * sum_t  s_it / sum_j s_jt          s: sigmoid or softmax scores of the router
    L   = sum_i f_i P_i                           1 when perfectly balanced; gradient through P only

The term of a batch is the mean of L over the sequences of the *global* batch, summed over layers;
Nemotron 3 Nano's SFT uses the coefficient 1e-4 (its section 3.1.6).

`ExpertBias` moves the score-correction bias of sigmoid routers after every step towards even loads
(DeepSeek-V3, section 2.1.2); Nemotron 3 Nano does in RL, with frozen routers (its section 3.2):

    b_e += rate · sign(mean load − load of expert e)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from posttrain.errors import ConfigError
from posttrain.models.load import find_routers, uses_sigmoid

BIAS = "e_score_correction_bias"


@dataclass(frozen=True, slots=True)
class Routing:
    """What one router decided: `logits` [tokens, experts] with graph, `chosen` [tokens, K]."""

    logits: torch.Tensor
    chosen: torch.Tensor
    sigmoid: bool


class ExpertBalance:
    """Collects the routing of one forward pass and turns it into the balance term."""

    def __init__(self, model: nn.Module) -> None:
        self.routers = find_routers(model)
        if not self.routers:
            raise ConfigError(
                f"balance.coefficient is set, but {type(model).__name__} has no top-k router; "
                "set it to 0 for a model without experts"
            )
        self._with_graph: bool | None = None  # None: nothing is collected
        self._seen: list[Routing] = []
        for router in self.routers.values():
            router.register_forward_hook(self._hook)

    def _hook(self, router: nn.Module, _inputs: Any, output: Any) -> None:
        # recomputation under gradient checkpointing runs in backward, outside `collect`
        if self._with_graph is None:
            return
        logits, _, chosen = output
        trained = router.get_parameter("weight").requires_grad
        if self._with_graph and trained and not logits.requires_grad:
            raise ConfigError(
                "the balance term has no gradient: a router ran without a graph. Reentrant "
                "gradient checkpointing does that; set "
                "trainer.gradient_checkpointing_kwargs.use_reentrant to false"
            )
        self._seen.append(Routing(logits, chosen, uses_sigmoid(router)))

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Record every router that runs inside the block."""
        self._seen.clear()
        # inside a reentrant checkpoint the hook sees grad disabled, so note it here
        self._with_graph = torch.is_grad_enabled()
        try:
            yield
        finally:
            self._with_graph = None

    def take(self, sequence_ids: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
        """Of the pass just recorded the sum over sequences and layers of L, and for the log the
        mean over layers of max_i load_i / mean load − 1.

        Args:
            sequence_ids: int64 [tokens], as of `document_masking.sequence_ids`.
            count: of sequences.
        """
        layers = [layer_balance(seen, sequence_ids, count) for seen in self._seen]
        self._seen.clear()
        assert layers, "no router ran inside collect()"
        total = torch.stack([losses.sum() for losses, _ in layers]).sum()
        return total, sum(worst for _, worst in layers) / len(layers)


def layer_balance(
    routing: Routing, sequence_ids: torch.Tensor, count: int
) -> tuple[torch.Tensor, float]:
    """L of each sequence, [count], for one layer; and that layer's largest load violation."""
    kept = sequence_ids >= 0
    ids = sequence_ids[kept]
    logits = routing.logits.float()[kept]
    chosen = routing.chosen[kept]
    experts, k = logits.size(-1), chosen.size(-1)
    scores = logits.sigmoid() if routing.sigmoid else logits.softmax(-1)
    shares = scores / scores.sum(-1, keepdim=True)
    lengths = shares.new_zeros(count).index_add_(0, ids, torch.ones_like(ids, dtype=shares.dtype))
    lengths = lengths.clamp(min=1)[:, None]
    picked = torch.zeros_like(logits).scatter_add_(
        1, chosen, torch.ones_like(chosen, dtype=logits.dtype)
    )
    loads = shares.new_zeros(count, experts).index_add_(0, ids, picked.detach())
    mean_shares = shares.new_zeros(count, experts).index_add(0, ids, shares) / lengths
    frequencies = loads * experts / (k * lengths)
    load = loads.sum(0)
    worst = float(load.max() / load.mean() - 1) if count else 0.0
    return (frequencies * mean_shares).sum(-1), worst


def freeze_routers(model: nn.Module, *, freeze: bool) -> int:
    """Take the routers' parameters out of training, if so; returns how many routers there are."""
    routers = find_routers(model)
    for router in routers.values():
        for parameter in router.parameters():
            parameter.requires_grad_(parameter.requires_grad and not freeze)
    return len(routers)


class ExpertBias:
    """Counts the tokens that each expert was chosen for, and moves the biases by `rate` a step."""

    def __init__(self, model: nn.Module, *, rate: float) -> None:
        self.rate = rate
        routers = find_routers(model) if rate else {}
        self.routers: list[Any] = [one for one in routers.values() if uses_sigmoid(one)]
        self._mask: torch.Tensor | None = None
        # the model may not be on its device yet
        self._loads = [torch.zeros(one.get_buffer(BIAS).shape) for one in self.routers]
        for number, router in enumerate(self.routers):
            router.register_forward_hook(functools.partial(self._count, number))

    def _count(self, number: int, _router: nn.Module, _inputs: Any, output: Any) -> None:
        # recomputation under gradient checkpointing runs in backward, outside `counting`
        if self._mask is None:
            return
        chosen: torch.Tensor = output[2]
        loads = self._loads[number] = self._loads[number].to(chosen.device)
        real = chosen[self._mask.to(chosen.device)].flatten()
        loads.index_add_(0, real, torch.ones_like(real, dtype=loads.dtype))

    @contextlib.contextmanager
    def counting(self, attention_mask: torch.Tensor) -> Iterator[None]:
        """Count every router that runs inside the block; the mask is `[rows, columns]`."""
        self._mask = attention_mask.bool().flatten() if self.routers else None
        try:
            yield
        finally:
            self._mask = None

    @torch.no_grad()
    def move(self, accelerator: Any) -> dict[str, float]:
        """Move the biases by the loads of all processes, and start to count anew; returns
        `max_violation`, the mean over layers of max load / mean load − 1, {} without routers."""
        violations: list[float] = []
        for router, loads in zip(self.routers, self._loads, strict=True):
            total = accelerator.reduce(loads.double(), "sum")
            mean = total.mean()
            bias = router.get_buffer(BIAS)
            bias += (self.rate * torch.sign(mean - total)).to(bias)
            violations.append(float(total.max() / mean.clamp(min=1) - 1))
            loads.zero_()
        return {"max_violation": sum(violations) / len(violations)} if violations else {}
