"""Bytes of weights and gradients that come and go in a step, by how parameters are sharded.

    shards = make_shards(model, base_model, launched, accumulated=False)
    shards.use(weight)           in the order of the forward and the backward pass
    shards.add_gradient(weight)  when its gradient is complete
    shards.gathered, shards.gradients

The classes follow the sources of PyTorch 2.13 (`torch.distributed.fsdp._fully_shard`), accelerate
1.15 (`fsdp2_prepare_model`) and DeepSpeed 0.19 (`runtime/zero`), with DeepSpeed's default sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.models.load import parameter_count
from posttrain.training.launch import Launched

# DeepSpeed's defaults, in elements
BUCKET = 500_000_000  # gradients that are reduced together
GATHERED = 1_000_000_000  # parameters gathered at a time
FETCHED = 50_000_000  # parameters gathered ahead of their use
UPDATED = 1_000_000_000  # parameters that an optimiser step of ZeRO-3 updates at a time


class Shards:
    """Whole weights and gradients in every process: a single process, or DDP.

    Args:
        accumulated: True if gradients of an earlier micro-batch exist before the step.
        units: modules that FSDP 2 gathers one after the other.

    Attributes:
        gathered: Bytes of weights and gradients of other processes, and of buckets.
        gradients: Bytes of gradients that this process keeps.
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
        self.processes = launched.world_size
        self.on_cpu = launched.device == "cpu"
        self.element_bytes = 4 if launched.precision == "fp32" else 2
        self.total = sum(parameter_count(p) for p in self.parameters)
        self.trained = sum(parameter_count(p) for p in self.parameters if p.requires_grad)
        self.accumulated = accumulated
        self.gathered = 0
        self.gradients = 0
        self._begin(units)

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        """Set the bytes before the first operation of the step."""
        gradient_bytes = sum(p.nbytes for p in self.parameters if p.requires_grad)
        # DDP reduces copies of the gradients, and keeps them
        self.gathered = gradient_bytes if self.processes > 1 else 0
        self.gradients = gradient_bytes if self.accumulated else 0

    def use(self, weight: torch.nn.Parameter) -> None:
        """Note that an operation reads this weight."""

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        """Note that the gradient of this weight is complete, and count it from now on.

        Returns:
            Further bytes at this moment alone.
        """
        if not self.accumulated:
            self.gradients += weight.nbytes
        return 0

    def update(self) -> int:
        """Note that the optimiser updates the weights.

        Returns:
            Further bytes at this moment alone.
        """
        return 0


class Zero2(Shards):
    """ZeRO-2: gradients are copied to a bucket, and each process keeps its part of their sum."""

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        # on a CPU an empty bucket takes nothing: memory counts once it is written to
        self.gathered = 0 if self.on_cpu else self.element_bytes * BUCKET
        self.gradients = 0
        if self.accumulated:
            self.gradients = self.element_bytes * self.trained // self.processes

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        gradient_bytes = self.element_bytes * parameter_count(weight)
        self.gathered = min(self.gathered + gradient_bytes, self.element_bytes * BUCKET)
        self.gradients += gradient_bytes // self.processes
        return 0

    def update(self) -> int:
        self.gathered = 0
        return 4 * self.trained // self.processes


class Zero3(Shards):
    """ZeRO-3: weights, gradients and optimiser are split among the processes.

    Weights are gathered ahead and, up to a limit, stay until their last use in the backward pass.
    A bucket of gradients and the process's part of their sum exist at all times.
    """

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        self.bucket = min(BUCKET, self.trained) if self.on_cpu else BUCKET
        self.gradients = self.element_bytes * self.trained // self.processes
        self.used: set[int] = set()
        # elements: of gathered weights, of gradients in the bucket, of all complete gradients
        self.gathered_count = 0
        self.bucket_count = 0
        self.reduced_count = 0
        self._gather(0)

    def _gather(self, change: int) -> None:
        """Gather `change` more elements, or release them where it is negative."""
        self.gathered_count += change
        with_fetched = self.gathered_count + FETCHED
        gathered_count = min(GATHERED, self.total - self.reduced_count, with_fetched)
        self.gathered = self.element_bytes * (self.bucket + gathered_count)

    def use(self, weight: torch.nn.Parameter) -> None:
        if id(weight) not in self.used:
            self.used.add(id(weight))
            self._gather(parameter_count(weight))

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        self.use(weight)
        count = parameter_count(weight)
        copied_count = 0
        if self.bucket_count + count > BUCKET:
            copied_count = self.bucket_count
        self.bucket_count += count - copied_count
        self.reduced_count += count
        self._gather(-count)
        if self.reduced_count == self.trained:
            copied_count = self.bucket_count
        # a bucket that is reduced is copied first, into the order of the processes' parts
        return self.element_bytes * copied_count

    def update(self) -> int:
        self.gathered = self.element_bytes * self.bucket
        return 4 * min(self.trained // self.processes, UPDATED)


class Fsdp2(Shards):
    """FSDP 2: units are gathered one after another.

    Units are the layers, the embedding where it is not tied, and last the root unit with all other
    weights, which stays gathered from its first use to the end of its backward pass.
    """

    def _begin(self, units: Sequence[torch.nn.Module]) -> None:
        self.root = len(units)
        self.unit_of = {id(p): self.root for p in self.parameters}
        for unit, module in enumerate(units):
            self.unit_of |= {id(p): unit for p in module.parameters()}
        # bytes of each unit's weights, and of its gradients
        self.weight_bytes = [0] * (self.root + 1)
        self.gradient_bytes = [0] * (self.root + 1)
        for parameter in self.parameters:
            size = self.element_bytes * parameter_count(parameter)
            unit = self.unit_of[id(parameter)]
            self.weight_bytes[unit] += size
            if parameter.requires_grad:
                self.gradient_bytes[unit] += size
        # units in the order of their first use
        self.order: list[int] = []
        # bytes of the root unit while it is gathered
        self.root_gathered = 0
        # bytes of a unit's gradients that are being reduced, and of those collected for the next
        # reduction
        self.reduced = 0
        self.collected = 0
        self.collecting_unit = self.root
        # summed and kept in float32
        self.gradients = 4 * self.trained // self.processes if self.accumulated else 0

    def _gather(self, unit: int) -> None:
        """Count the bytes while this unit is gathered."""
        index = self.order.index(unit)
        if torch._C._current_graph_task_id() == -1:
            # forward: the flat copy of a unit stays until the next unit's exists
            flat_copy = self.weight_bytes[unit]
        else:
            # backward: the next unit is fetched ahead
            next_unit = self.order[index - 1] if index and unit != self.root else self.root
            flat_copy = 0 if next_unit == self.root else self.weight_bytes[next_unit]
        weights = self.root_gathered
        if unit != self.root:
            weights += self.weight_bytes[unit]
        self.gathered = weights + flat_copy + self.reduced + self.collected

    def use(self, weight: torch.nn.Parameter) -> None:
        unit = self.unit_of[id(weight)]
        if unit not in self.order:
            self.order.append(unit)
            if unit == self.root:
                self.root_gathered = self.weight_bytes[unit]
        self._gather(unit)

    def add_gradient(self, weight: torch.nn.Parameter) -> int:
        self.use(weight)
        count = parameter_count(weight)
        unit = self.unit_of[id(weight)]
        if not self.accumulated:
            self.gradients += 4 * count // self.processes
        if unit != self.collecting_unit:
            # parameters of the unit before have no gradient, so that its reduction is still due
            self._reduce()
            self.collecting_unit = unit
        self.collected += self.element_bytes * count
        copied = self._reduce() if self.collected == self.gradient_bytes[unit] else 0
        self._gather(unit)
        return copied

    def _reduce(self) -> int:
        """Reduce the collected gradients of a unit, in a copy that takes the place of the last one.

        Returns:
            Bytes that the copy takes beyond the last one, at this moment alone.
        """
        growth = max(self.collected - self.reduced, 0)
        if self.collected:
            self.reduced = self.collected
            self.collected = 0
            if self.collecting_unit == self.root:
                self.root_gathered = 0
        return growth

    def update(self) -> int:
        self.gathered = 0
        return 0


def make_shards(
    model: torch.nn.Module, base_model: Any, launched: Launched, *, accumulated: bool
) -> Shards:
    """Shards of a model in the launcher's kind of sharding.

    Args:
        base_model: the model without an adapter around it.
        accumulated: True if gradients of an earlier micro-batch exist before the step.
    """
    if not launched.sharding.startswith("fsdp"):
        shards_class = {"zero2": Zero2, "zero3": Zero3}.get(launched.sharding, Shards)
        return shards_class(model, launched, accumulated=accumulated)
    # the layers, as accelerate finds them
    layer_names = set(base_model._no_split_modules or ())
    units = [module for module in base_model.modules() if type(module).__name__ in layer_names]
    embedding = base_model.get_input_embeddings()
    if base_model.get_output_embeddings().weight is not embedding.weight:
        units.insert(0, embedding)
    return Fsdp2(model, launched, accumulated=accumulated, units=units)
