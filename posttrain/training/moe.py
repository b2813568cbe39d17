"""Balance of experts by forward hooks on the routers: a loss term, and a moving bias.

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
    """Decisions of one router in one forward pass.

    Attributes:
        logits: `[tokens, experts]`, with the graph.
        chosen: `[tokens, K]`, experts of each token.
        sigmoid: True where the router's scores are sigmoids, False where they are a softmax.
    """

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
        # None outside `collect`, where the hooks record nothing
        self._with_graph: bool | None = None
        self._routings: list[Routing] = []
        for router in self.routers.values():
            router.register_forward_hook(self._hook)

    def _hook(self, router: nn.Module, _inputs: Any, output: Any) -> None:
        """Record the decisions of a router; called after its forward pass."""
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
        self._routings.append(Routing(logits, chosen, uses_sigmoid(router)))

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Record the decisions of all routers that run inside the block."""
        self._routings.clear()
        # noted here, because inside a reentrant checkpoint the hook sees gradients disabled
        self._with_graph = torch.is_grad_enabled()
        try:
            yield
        finally:
            self._with_graph = None

    def take(self, sequence_ids: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
        """Balance of the pass that was recorded last; forgets the pass.

        Args:
            sequence_ids: int64 `[tokens]`, from `document_masking.sequence_ids`.
            count: number of sequences.

        Returns:
            The sum of L over sequences and layers, and for the log the mean over layers of
            max_i load_i / mean load − 1.
        """
        layers = [layer_balance(routing, sequence_ids, count) for routing in self._routings]
        self._routings.clear()
        assert layers, "no router ran inside collect()"
        balance = torch.stack([losses.sum() for losses, _ in layers]).sum()
        mean_violation = sum(violation for _, violation in layers) / len(layers)
        return balance, mean_violation


def layer_balance(
    routing: Routing, sequence_ids: torch.Tensor, count: int
) -> tuple[torch.Tensor, float]:
    """L of each sequence `[count]` in one layer, and max_i load_i / mean load − 1 of the layer."""
    # T: tokens of trained sequences, S: sequences, E: experts
    trained = sequence_ids >= 0
    ids_T = sequence_ids[trained]
    logits_T_E = routing.logits.float()[trained]
    chosen_T_K = routing.chosen[trained]
    experts = logits_T_E.size(-1)
    k = chosen_T_K.size(-1)
    scores_T_E = logits_T_E.sigmoid() if routing.sigmoid else logits_T_E.softmax(-1)
    shares_T_E = scores_T_E / scores_T_E.sum(-1, keepdim=True)
    ones_T = torch.ones_like(ids_T, dtype=shares_T_E.dtype)
    lengths_S = shares_T_E.new_zeros(count).index_add_(0, ids_T, ones_T)
    lengths_S_1 = lengths_S.clamp(min=1)[:, None]
    ones_T_K = torch.ones_like(chosen_T_K, dtype=logits_T_E.dtype)
    picked_T_E = torch.zeros_like(logits_T_E).scatter_add_(1, chosen_T_K, ones_T_K)
    loads_S_E = shares_T_E.new_zeros(count, experts).index_add_(0, ids_T, picked_T_E.detach())
    share_sums_S_E = shares_T_E.new_zeros(count, experts).index_add(0, ids_T, shares_T_E)
    mean_shares_S_E = share_sums_S_E / lengths_S_1
    frequencies_S_E = loads_S_E * experts / (k * lengths_S_1)
    load_E = loads_S_E.sum(0)
    violation = float(load_E.max() / load_E.mean() - 1) if count else 0.0
    return (frequencies_S_E * mean_shares_S_E).sum(-1), violation


def freeze_routers(model: nn.Module, *, freeze: bool) -> int:
    """Exclude the routers' parameters from training if `freeze`. Returns the number of routers."""
    routers = find_routers(model)
    for router in routers.values():
        for parameter in router.parameters():
            parameter.requires_grad_(parameter.requires_grad and not freeze)
    return len(routers)


class ExpertBias:
    """Counts the tokens of each expert, and moves the biases of sigmoid routers towards even loads.

    Args:
        rate: change of a bias per step; 0 leaves the routers unhooked.
    """

    def __init__(self, model: nn.Module, *, rate: float) -> None:
        self.rate = rate
        routers = find_routers(model) if rate else {}
        self.routers: list[Any] = [router for router in routers.values() if uses_sigmoid(router)]
        # None outside `counting`, where the hooks count nothing
        self._mask: torch.Tensor | None = None
        # moved in the hook: the model may not be on its device yet
        self._loads = [torch.zeros(router.get_buffer(BIAS).shape) for router in self.routers]
        for layer, router in enumerate(self.routers):
            router.register_forward_hook(functools.partial(self._count, layer))

    def _count(self, layer: int, _router: nn.Module, _inputs: Any, output: Any) -> None:
        """Add the experts that a router has chosen to the loads of its layer."""
        # recomputation under gradient checkpointing runs in backward, outside `counting`
        if self._mask is None:
            return
        chosen: torch.Tensor = output[2]
        loads = self._loads[layer].to(chosen.device)
        self._loads[layer] = loads
        chosen_experts = chosen[self._mask.to(chosen.device)].flatten()
        loads.index_add_(0, chosen_experts, torch.ones_like(chosen_experts, dtype=loads.dtype))

    @contextlib.contextmanager
    def counting(self, attention_mask: torch.Tensor) -> Iterator[None]:
        """Count the tokens of all routers that run inside the block, without padding.

        Args:
            attention_mask: `[rows, columns]`, 0 for padding.
        """
        self._mask = attention_mask.bool().flatten() if self.routers else None
        try:
            yield
        finally:
            self._mask = None

    @torch.no_grad()
    def move(self, accelerator: Any) -> dict[str, float]:
        """Move the biases by the loads of all processes, and reset the counts.

        Returns:
            `max_violation`, the mean over layers of max load / mean load − 1; {} without routers.
        """
        violations: list[float] = []
        for router, local_loads in zip(self.routers, self._loads, strict=True):
            loads = accelerator.reduce(local_loads.double(), "sum")
            mean_load = loads.mean()
            bias = router.get_buffer(BIAS)
            bias += (self.rate * torch.sign(mean_load - loads)).to(bias)
            violations.append(float(loads.max() / mean_load.clamp(min=1) - 1))
            local_loads.zero_()
        if not violations:
            return {}
        return {"max_violation": sum(violations) / len(violations)}
