"""Trains the denoiser's own weights (full fine-tuning): which of them, their groups, and how they are loaded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backend.config.layer_patterns import rates_of, trained_names
from backend.config.sections.network import NetworkSection
from backend.config.sections.optimizer import OptimizerSection
from backend.config.sections.training import TrainingSection
from backend.memory.block_swap import BlockSwap
from backend.models.common.whole_model_files import text_tensors
from backend.optimizers.from_settings import optimizer_of
from backend.optimizers.tensorwise import Tensorwise

log = logging.getLogger(__name__)

_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def denoiser_dtype(training: TrainingSection, frozen: torch.dtype) -> torch.dtype:
    """Format of the denoiser's weights; `frozen` where they are not trained."""
    return _FORMATS[training.full_weight_dtype] if training.kind == "full" else frozen


@dataclass(slots=True)
class FullWeights:
    """The trained weights of a denoiser by parameter name; names never hold ``_orig_mod``.

    Of bf16 ones, those that the model's class wants in float32 are so.
    """

    named: dict[str, nn.Parameter]
    texts: Mapping[str, nn.Module] = field(default_factory=dict)
    """Text encoders (part -> model) that are trained too; their parameters' names have the part in front."""
    swap: BlockSwap | None = None
    """Keeps some of them on the host, where they are swapped."""

    @classmethod
    def of(cls, model: nn.Module, network: NetworkSection, texts: Mapping[str, nn.Module] | None = None) -> FullWeights:
        """Let what the settings name be trained, and freeze the rest. Refused as in `trained_names`.

        texts: text encoders that are trained whole.
        """
        parameters = dict(model.named_parameters())
        names = trained_names(parameters, network.targets_include, network.targets_exclude)
        model.requires_grad_(False)
        for name in names:
            parameters[name].requires_grad_(True)
        named = {name: parameters[name] for name in names}
        for part, encoder in (texts or {}).items():
            encoder.requires_grad_(True)
            named |= {f"{part}.{name}": weight for name, weight in encoder.named_parameters()}
        return cls(named, texts or {})

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of all trained parameters, in the model's order."""
        return tuple(self.named)

    def groups(self, network: NetworkSection, optimizer: OptimizerSection) -> list[dict[str, Any]]:
        """Groups of the optimizer: one a learning rate, the run's own first, the text encoders' last."""
        usual = optimizer.optimizer_args.get("lr", optimizer.learning_rate)
        of_texts = [name for name in self.named if name.partition(".")[0] in self.texts]
        own = tuple(name for name in self.named if name not in set(of_texts))
        groups = [
            {"params": [self.named[name] for name in names], "lr": usual if rate is None else rate}
            for rate, names in rates_of(own, network.layer_settings).items()
        ]
        if of_texts:
            rate = usual if optimizer.text_encoder_lr is None else optimizer.text_encoder_lr
            groups.append({"params": [self.named[name] for name in of_texts], "lr": rate})
        return groups

    def optimizer(self, network: NetworkSection, optimizer: OptimizerSection, compiled: bool = False) -> Optimizer:
        """The optimizer of the settings over these weights. compiled: its step is, where it goes tensor by tensor."""
        groups = self.groups(network, optimizer)
        if not optimizer.fused_backward and all(p.dtype == torch.float32 for p in self.parameters()):
            return optimizer_of(optimizer, groups)
        if optimizer.fused_backward and optimizer.max_grad_norm:
            log.info("max_grad_norm limits each tensor's gradient by itself: each is used before all are known")
        return Tensorwise(
            lambda shadows: optimizer_of(optimizer, shadows),
            groups,
            fused=optimizer.fused_backward,
            longest=optimizer.max_grad_norm,
            keeper=None if self.swap is None else self.swap.states,
            compiled=compiled,
        )

    def parameters(self) -> list[nn.Parameter]:
        """All that is trained, in the model's order."""
        return list(self.named.values())

    def tensors(self) -> dict[str, Tensor]:
        """Parameter name -> the live tensor, no gradient; of swapped blocks, that in the host's memory."""
        host = self._on_host()
        return {name: host.get(id(parameter), parameter.detach()) for name, parameter in self.named.items()}

    def state_of(self, denoiser: nn.Module) -> dict[str, Tensor]:
        """The state dict of the whole denoiser, and of trained text encoders as `text_tensors` has it.

        Of swapped blocks, tensors in the host's memory.
        """
        host = self._on_host()
        live = denoiser.state_dict(keep_vars=True)
        own = {name: host.get(id(value), value.detach()) for name, value in live.items()}
        return own | text_tensors(self.texts)

    def _on_host(self) -> dict[int, Tensor]:
        return {} if self.swap is None else self.swap.on_host()

    def collect_gradients(self) -> None:
        """Nothing is to be done: gradients are summed in the weights' own."""

    def publish(self) -> None:
        """Nothing is to be done: the forward takes the weights themselves."""

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Set the values that `tensors()` gave, in place. KeyError when one is missing."""
        for name, live in self.tensors().items():
            live.copy_(tensors[name])
        if self.swap is not None:
            self.swap.read_again()

    def take_over(self, tensors: dict[str, Tensor]) -> None:
        """Hold `tensors`, which are on the host, in place of values on a device that no longer answers."""
        for name, parameter in self.named.items():
            parameter.data = tensors[name]

    @contextmanager
    def scaled(self, strength: float) -> Iterator[None]:
        """The model as it is. ValueError for a strength other than 1, which a rule refuses."""
        if strength != 1.0:
            raise ValueError("a model that is trained in full has no strength")
        yield


def rows_digest(network: NetworkSection) -> str:
    """Digest of the rates of single layers, as the groups of the optimizer follow from them; "" without any."""
    rows = network.layer_settings or ()
    text = "\n".join(f"{row.layers} {row.learning_rate}" for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
