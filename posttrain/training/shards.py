"""Bytes of weights and gradients that come and go in a step, by how parameters are sharded.

    shards = make_shards(model, plain, launched, accumulated=False)
    shards.use(weight)           in the order of the forward and the backward pass
    shards.add_gradient(weight)  when its gradient is whole
    shards.gathered, shards.gradients

They follow the sources of PyTorch 2.13 (`torch.distributed.fsdp._fully_shard`), accelerate 1.15
(`fsdp2_prepare_model`) and DeepSpeed 0.19 (`runtime/zero`), with DeepSpeed's default sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.models.load import parameter_count
from posttrain.training.launch import Launched

# DeepSpeed's defaults, in numbers: a bucket of gradients, parameters gathered at a time, those
# fetched ahead, and those that an optimiser step of ZeRO-3 updates at a time
BUCKET, GATHERED, FETCHED, UPDATED = 500_000_000, 1_000_000_000, 50_000_000, 1_000_000_000


class Shards:
    """Whole weights and gradients in every process: one alone, or DDP.

    Attributes:
        gathered: bytes of weights and gradients of other processes, and of buckets.
        gradients: bytes that this process keeps.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        launched: Launched,
        *,
        accumulated: bool,
        units: Sequence[torch.nn.Module] = (),
    ) -> None:
        self.parameters = list(model.parameters())
        self.processes, self.on_cpu = launched.world_size, launched.device == "cpu"
        self.number = 4 if launched.precision == "fp32" else 2
        self.all = sum(parameter_count(p) for p in self.parameters)
        self.trained = sum(parameter_count(p) for p in self.parameters if p.requires_grad)
        self.accumulated = accumulated
        self.gathered = self.gradients = 0
        self._begin(units)

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        held = sum(p.nbytes for p in self.parameters if p.requires_grad)
        # DDP reduces copies of the gradients, and keeps them
        self.gathered = held if self.processes > 1 else 0
        self.gradients = held if self.accumulated else 0

    def use(self, weight: torch.nn.Parameter) -> None:
        """A weight goes into an operation."""

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        """A gradient is whole; where it is kept is counted from now on.

        Returns:
            Bytes besides, for this moment.
        """
        if not self.accumulated:
            self.gradients += weight.nbytes
        return 0

    def update(self) -> int:
        """The optimiser updates the weights.

        Returns:
            Bytes besides, for this moment.
        """
        return 0


class Zero2(Shards):
    """Gradients are copied to a bucket; each process keeps its part of their sum."""

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        # on a CPU memory that nothing was written to does not count
        self.gathered = 0 if self.on_cpu else self.number * BUCKET
        self.gradients = self.number * self.trained // self.processes if self.accumulated else 0

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        n = self.number * parameter_count(weight)
        self.gathered = min(self.gathered + n, self.number * BUCKET)
        self.gradients += n // self.processes
        return 0

    def update(self) -> int:
        self.gathered = 0
        return 4 * self.trained // self.processes


class Zero3(Shards):
    """Weights are gathered ahead and, up to a limit, stay until their last use in the backward
    pass. A bucket of gradients and the process's own part are there at all times."""

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        self.bucket = min(BUCKET, self.trained) if self.on_cpu else BUCKET
        self.gradients = self.number * self.trained // self.processes
        self.used: set[int] = set()
        self.here = self.filled = self.summed = 0
        self._gather(0)

    def _gather(self, change: int) -> None:
        self.here += change
        here = min(GATHERED, self.all - self.summed, self.here + FETCHED)
        self.gathered = self.number * (self.bucket + here)

    def use(self, weight: torch.nn.Parameter) -> None:
        if id(weight) not in self.used:
            self.used.add(id(weight))
            self._gather(parameter_count(weight))

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        self.use(weight)
        n = parameter_count(weight)
        full = self.filled if self.filled + n > BUCKET else 0
        self.filled += n - full
        self.summed += n
        self._gather(-n)
        # a full bucket is copied in the order of the parts
        return self.number * (self.filled if self.summed == self.trained else full)

    def update(self) -> int:
        self.gathered = self.number * self.bucket
        return 4 * min(self.trained // self.processes, UPDATED)


class Fsdp2(Shards):
    """Units are gathered one after another: each layer, the embedding where it is not tied, and the
    rest, which stays from its first use to the end of its backward pass."""

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        inside = {id(p): unit for unit, module in enumerate(units) for p in module.parameters()}
        self.rest = len(units)
        self.unit_of = {id(p): inside.get(id(p), self.rest) for p in self.parameters}
        self.weights, self.trained_in = [0] * (self.rest + 1), [0] * (self.rest + 1)
        for p in self.parameters:
            n, unit = self.number * parameter_count(p), self.unit_of[id(p)]
            self.weights[unit] += n
            self.trained_in[unit] += n if p.requires_grad else 0
        self.order: list[int] = []
        self.resting = self.reduced = self.reducing = 0
        self.summing = self.rest
        # summed and kept in float32
        self.gradients = 4 * self.trained // self.processes if self.accumulated else 0

    def _gather(self, unit: int) -> None:
        at = self.order.index(unit)
        if torch._C._current_graph_task_id() == -1:
            # the flat copy of a unit stays until the next one's is there
            flat = self.weights[unit]
        else:
            # in the backward pass the next unit is fetched ahead
            ahead = self.order[at - 1] if at and unit != self.rest else self.rest
            flat = 0 if ahead == self.rest else self.weights[ahead]
        own = self.resting if unit == self.rest else self.weights[unit] + self.resting
        self.gathered = own + flat + self.reduced + self.reducing

    def use(self, weight: torch.nn.Parameter) -> None:
        unit = self.unit_of[id(weight)]
        if unit not in self.order:
            self.order.append(unit)
            if unit == self.rest:
                self.resting = self.weights[unit]
        self._gather(unit)

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        self.use(weight)
        n, unit = parameter_count(weight), self.unit_of[id(weight)]
        if not self.accumulated:
            self.gradients += 4 * n // self.processes
        if unit != self.summing:  # parameters of the unit before may have no gradient
            self._reduce()
            self.summing = unit
        self.reducing += self.number * n
        besides = self._reduce() if self.reducing == self.trained_in[unit] else 0
        self._gather(unit)
        return besides

    def _reduce(self) -> int:
        """Copy a unit's gradients, where those of the unit before were."""
        besides = max(self.reducing - self.reduced, 0)
        if self.reducing:
            self.reduced, self.reducing = self.reducing, 0
            self.resting *= self.summing != self.rest
        return besides

    def update(self) -> int:
        self.gathered = 0
        return 0


def make_shards(
    model: torch.nn.Module, plain: Any, launched: Launched, *, accumulated: bool
) -> Shards:
    """Shards of a model as its launcher places it.

    Args:
        plain: the model without an adapter around it.
        accumulated: gradients of an earlier micro-batch are there.
    """
    if not launched.sharding.startswith("fsdp"):
        kind = {"zero2": Zero2, "zero3": Zero3}.get(launched.sharding, Shards)
        return kind(model, launched, accumulated=accumulated)
    kinds = set(plain._no_split_modules or ())
    units = [module for module in plain.modules() if type(module).__name__ in kinds]
    embedding = plain.get_input_embeddings()
    if plain.get_output_embeddings().weight is not embedding.weight:
        units.insert(0, embedding)
    return Fsdp2(model, launched, accumulated=accumulated, units=units)
