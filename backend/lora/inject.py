"""Puts a LoRA into a denoiser: which layers, and what is trained (Hu et al., arXiv 2106.09685)."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.config.layer_patterns import FACTORED, MAGNITUDE, Kind, Size
from backend.lora.dora import Magnitude, decompose, magnitude_of
from backend.lora.dropout import LowDropout, TrainingDropout
from backend.lora.lokr_loha import FactoredLayer
from backend.lora.master_weights import Masters
from backend.lora.peft_layers import LoraConfig, LoraLayer, inject_adapter_in_model
from backend.lora.row_lengths import changed_lengths
from backend.lora.straight_layers import straighten
from backend.memory.seeds import generator

log = logging.getLogger(__name__)

ADAPTER = "default"


@dataclass(frozen=True)
class Lora:
    """The trained part of a denoiser: ``W x + (alpha / rank) B A x`` in every target layer, or another kind of change.

    layers: module path in the denoiser -> the layer, in the model's order; paths never hold ``_orig_mod``.
    masters: float32 copies that are trained and saved in place of 16-bit weights; None where the weights are float32.
    frozen_lengths: of a DoRA, module path -> row lengths (out, 1) of frozen layers that some files keep as one with a
    target.
    """

    layers: dict[str, LoraLayer | FactoredLayer]
    rank: int
    alpha: float
    masters: Masters | None = None
    frozen_lengths: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """Module paths of all that is trained, in the model's order."""
        return tuple(self.layers)

    def rank_of(self, path: str) -> int:
        """Rank of one target."""
        layer = self.layers[path]
        return layer.rank if isinstance(layer, FactoredLayer) else layer.r[ADAPTER]

    def alpha_of(self, path: str) -> float:
        """Alpha of one target."""
        layer = self.layers[path]
        return float(layer.alpha if isinstance(layer, FactoredLayer) else layer.lora_alpha[ADAPTER])

    def scale_of(self, path: str) -> float:
        """What B A of one target is multiplied by."""
        return self.alpha_of(path) / self.rank_of(path)

    def pair(self, path: str) -> tuple[nn.Parameter, nn.Parameter]:
        """A (rank, in features) and B (out features, rank) of one target as trained and saved, float32.

        A convolution's have two dimensions more, as other programs keep them too: A those of its kernel, B 1 each.
        """
        a, b = self.live(path)
        return (a, b) if self.masters is None else (self.masters.of(a), self.masters.of(b))

    def live(self, path: str) -> tuple[nn.Parameter, nn.Parameter]:
        """A and B of one target as the forward takes them."""
        layer = self.layers[path]
        return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight

    def parts(self, path: str) -> dict[str, nn.Parameter]:
        """All that is trained of one target, by its name in files.

        `pair`, and row lengths of a DoRA; or the factors of a LoKr or LoHa.
        """
        layer = self.layers[path]
        if not isinstance(layer, FactoredLayer):
            parts = dict(zip(("lora_A.weight", "lora_B.weight"), self.pair(path), strict=True))
            magnitude = self.magnitude(path)
            return parts if magnitude is None else {**parts, MAGNITUDE: magnitude.weight}
        return {n: p if self.masters is None else self.masters.of(p) for n, p in layer.factors.items()}

    def magnitude(self, path: str) -> Magnitude | None:
        """The trained row lengths of one target, of a DoRA."""
        return magnitude_of(self.layers[path], ADAPTER)

    def lengths_now(self, path: str) -> Tensor:
        """The row lengths (out, 1) of the weight that one target of a DoRA has with its change, without gradient."""
        return changed_lengths(self.layers[path], ADAPTER)[:, None]

    def _strength(self, path: str) -> Tensor:
        """What the change of one target is a multiple of, as the forward takes it."""
        layer, magnitude = self.layers[path], self.magnitude(path)
        if magnitude is not None:
            return magnitude.strength
        if isinstance(layer, FactoredLayer):
            return layer.factors["lokr_w1" if layer.kind == "lokr" else "hada_w1_a"]
        return self.live(path)[1]

    def collect_gradients(self) -> None:
        """Called after each backward pass: the gradients are then those of `parameters()`."""
        if self.masters is not None:
            self.masters.collect()

    def publish(self) -> None:
        """Called when values of `parameters()` changed: the forward takes them from now on."""
        if self.masters is not None:
            self.masters.publish()

    def joined(self, other: Lora) -> Lora:
        """The LoRAs of two models as one, by the paths of both; before there are masters."""
        assert self.masters is None and other.masters is None and not self.layers.keys() & other.layers.keys()
        return replace(self, layers={**self.layers, **other.layers})

    def in_format(self, dtype: torch.dtype) -> Lora:
        """The same with weights of `dtype`, and float32 masters where that is not float32."""
        if dtype == torch.float32:
            return self
        # not lengths: rounded, they would change the base, and there is one a row
        rounded = [part for path in self.layers for name, part in self.parts(path).items() if name != MAGNITUDE]
        return replace(self, masters=Masters(rounded, dtype))

    def parameters(self) -> list[nn.Parameter]:
        """All that is trained, in the model's order."""
        return [p for path in self.layers for p in self.parts(path).values()]

    def tensors(self) -> dict[str, Tensor]:
        """``<path>.<name>`` of all `parts` -> the live float32 tensors, no gradient."""
        return {f"{path}.{name}": part.detach() for path in self.layers for name, part in self.parts(path).items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Set the values that `tensors()` gave, in place. KeyError when one is missing."""
        for name, live in self.tensors().items():
            live.copy_(tensors[name])
        self.publish()

    def take_over(self, tensors: dict[str, Tensor]) -> None:
        """Hold `tensors`, which are on the host, in place of values on a device that no longer answers.

        For writing a file and nothing else. KeyError when one is missing.
        """
        for name, part in zip(self.tensors(), self.parameters(), strict=True):
            part.data = tensors[name]

    @contextmanager
    def scaled(self, strength: float) -> Iterator[None]:
        """The LoRA at `strength` (1 = as trained, 0 = the base exactly) until the block ends.

        B, or of a DoRA a number for this, is changed in place and put back bit by bit: a changed scaling factor would
        be a new guard value in every compiled block.
        """
        if strength == 1.0:
            yield
            return
        kept = [self._strength(path).detach().clone() for path in self.layers]
        with torch.no_grad():
            for path in self.layers:
                self._strength(path).mul_(strength)
        try:
            yield
        finally:
            with torch.no_grad():
                for path, before in zip(self.layers, kept, strict=True):
                    self._strength(path).copy_(before)


def find_targets(model: nn.Module, include: Sequence[str], exclude: Sequence[str] | None = None) -> list[str]:
    """Module paths of the layers that `include` names and `exclude` does not, in the model's order.

    Layers are linear ones and convolutions.

    A pattern is a whole path, the end of a path (``attn.to_q``, as in peft), or a regular expression for a whole path.
    Refused for a pattern of `include` that matches no such layer (nearest names given), for a broken regular
    expression, and when `exclude` leaves nothing. A pattern of `exclude` without effect is a warning.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    linear = [name for name, module in modules.items() if takes_lora(module)]
    targets: set[str] = set()
    for pattern in include:
        test = _matcher(pattern, "network.targets_include")
        matching = {name for name in linear if test(name)}
        if not matching:
            raise _nothing_matches(pattern, modules, linear, test)
        targets |= matching
    for pattern in exclude or ():
        test = _matcher(pattern, "network.targets_exclude")
        matching = {name for name in targets if test(name)}
        if not matching:
            log.warning("targets_exclude %r excludes nothing", pattern)
        targets -= matching
    if not targets:
        text = "The targets leave no layer to train: everything included is excluded"
        raise Refused(text, "Remove a pattern from targets_exclude.", "network.targets_exclude")
    return [name for name in linear if name in targets]


def takes_lora(module: nn.Module) -> bool:
    """Whether a LoRA goes into this layer: a linear one, or a convolution that mixes all its channels."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)


def is_large(module: nn.Module) -> bool:
    """True for a convolution larger than one pixel, whose LoRA has an A of the same size."""
    return isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)


def inject(
    model: nn.Module,
    targets: Sequence[str],
    *,
    rank: int,
    alpha: float,
    dropout: float,
    rank_dropout: float = 0.0,
    module_dropout: float = 0.0,
    seed: int,
    sizes: Mapping[str, Size] | None = None,
    kind: Kind = "lora",
    factor: int | None = None,
    cast: bool = True,
    weight_dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Lora:
    """Freeze `model`, put a LoRA into the layers `targets` (full paths), and return it.

    A starts as nn.Linear does (Kaiming uniform), from (seed, path) alone: equal for every dtype, device and set of
    other targets; B starts at 0, and lengths of a DoRA as they are. All are float32, or A and B of `weight_dtype` with
    float32 masters. cast: bring a layer's input to the LoRA's format first; off under autocast, which does the same
    without a copy of every activation.
    dropout: of what enters A; rank_dropout, module_dropout: as in `LowDropout`, the first for a LoRA alone.
    sizes: rank and alpha of layers that have their own. kind, factor: of the change, as in `FactoredLayer`.
    device: of the trained weights; None puts them on the device of their layer's frozen weight.
    """
    model.requires_grad_(False)
    ranks = {path: (sizes or {}).get(path, Size(rank, alpha)) for path in targets}
    if kind in FACTORED:
        changed = {path: _factored(model, path, kind, size, factor, seed) for path, size in ranks.items()}
        for layer in changed.values():
            layer.factors.to(device=device or next(layer.base_layer.parameters()).device)
            layer.cast, layer.module_dropout = cast, module_dropout
            layer.dropout = TrainingDropout(dropout) if dropout > 0 else layer.dropout
        return Lora(changed, rank, alpha).in_format(weight_dtype)
    layers = _peft_layers(model, targets, rank, alpha, dropout, sizes or {})
    lora = Lora(layers, rank, alpha)
    for path, layer in layers.items():
        for part in (layer.lora_A, layer.lora_B):
            part[ADAPTER].to(device=device, dtype=torch.float32)
        a, b = lora.pair(path)
        bound = 1 / math.sqrt(a[0].numel())
        with torch.no_grad():
            a.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=generator(seed, "lora", path)))
            b.zero_()
        a.requires_grad_(True)
        b.requires_grad_(True)
        if dropout > 0:
            layer.lora_dropout[ADAPTER] = TrainingDropout(dropout)
        # of a DoRA lengths go with the whole
        whole = 0.0 if kind == "dora" else module_dropout
        if rank_dropout > 0 or whole > 0:
            layer.lora_A[ADAPTER].register_forward_hook(LowDropout(rank_dropout, whole))
        layer.cast_input_dtype_enabled = cast
        straighten(layer, ADAPTER)
        if kind == "dora":
            decompose(layer, ADAPTER, device, module_dropout)
    return lora.in_format(weight_dtype)


def _peft_layers(
    model: nn.Module, targets: Sequence[str], rank: int, alpha: float, dropout: float, sizes: Mapping[str, Size]
) -> dict[str, LoraLayer]:
    """peft's LoRA layer in place of each layer of `targets`, in their order."""
    # one expression, since a list matches by the paths' ends: proj_out fits single_transformer_blocks.0.proj_out too
    exactly = "|".join(re.escape(path) for path in targets)
    own = {f"^{re.escape(path)}": size for path, size in sizes.items()}
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=exactly,
        lora_dropout=dropout,
        rank_pattern={path: size.rank for path, size in own.items() if size.rank != rank},
        alpha_pattern={path: size.alpha for path, size in own.items() if size.alpha != alpha},
    )
    inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    named = dict(model.named_modules())
    layers = {path: named[path] for path in targets}
    missing = [path for path, layer in layers.items() if not isinstance(layer, LoraLayer)]
    others = [n for n, m in named.items() if isinstance(m, LoraLayer) and n not in layers]
    assert not missing and not others, f"peft left out {missing} and added {others}"
    return layers


def _factored(model: nn.Module, path: str, kind: Kind, size: Size, factor: int | None, seed: int) -> FactoredLayer:
    """Put the factors of a LoKr or LoHa beside the layer at `path`; Refused for a convolution larger than a pixel."""
    parent, _, name = path.rpartition(".")
    if is_large(model.get_submodule(path)):
        text = f"{path} is a convolution larger than one pixel, into which no {kind} goes"
        raise Refused(text, "Take it out of targets_include, or set network_type to lora.", "network.targets_include")
    layer = FactoredLayer(model.get_submodule(path), kind, size.rank, size.alpha, factor)
    layer.start(generator(seed, "lora", path))
    setattr(model.get_submodule(parent), name, layer)
    return layer


def _matcher(pattern: str, setting: str) -> Callable[[str], bool]:
    try:
        whole = re.compile(pattern)
    except re.error as error:
        raise Refused(f"{pattern!r} is no regular expression: {error}", "Correct the pattern.", setting) from error
    return lambda name: name == pattern or name.endswith(f".{pattern}") or whole.fullmatch(name) is not None


def _nothing_matches(
    pattern: str, modules: dict[str, nn.Module], linear: list[str], test: Callable[[str], bool]
) -> Refused:
    other = next((name for name in modules if test(name)), None)
    if other is not None:
        text = f"Target {pattern!r} names {other}, a {type(modules[other]).__name__}; a LoRA goes into linear layers "
        text += "and convolutions"
        inside = [n for n in linear if n.startswith(other + ".")][:3]
        near = inside or _ends(linear)[:3]
    else:
        text = f"Target {pattern!r} matches no layer of the model"
        ends = _ends(linear)
        near = difflib.get_close_matches(pattern, ends, n=3, cutoff=0.4) or ends[:6]
    return Refused(text, f"Names near it: {', '.join(near)}.", "network.targets_include")


def _ends(linear: list[str]) -> list[str]:
    """The endings that name layers: the path after the block's number, without repeats."""
    ends = {re.sub(r"^.*?\.\d+\.", "", name): None for name in linear}
    return list(ends)
