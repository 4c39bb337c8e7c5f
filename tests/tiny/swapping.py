"""A short training of the tiny FLUX with LoRA, validation in between, with and without swapped blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import CompileStats, Telemetry
from backend.config.sections.optimizer import OptimizerSection
from backend.memory.block_swap import BlockSwap
from backend.memory.checkpointing import apply as checkpoint
from backend.memory.checkpointing import set_activation_budget
from backend.memory.exclusive_device import offloaded
from backend.models.family_classes import load_family
from backend.optimizers.from_settings import optimizer_of
from backend.optimizers.tensorwise import Tensorwise
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.shapes import Batch, denoiser_with_lora, make_batch

block_lists = load_family("flux").block_lists
predict = load_family("flux").predict

SIZES = [(6, 8), (8, 8), (8, 12), (12, 4)]
TEXT = 12
DOUBLE, SINGLE = 2, 3


def sparse_lora() -> torch.nn.Module:
    """LoRA on one layer a block class: as many graphs, traced in a fraction of the time."""
    from peft import LoraConfig, inject_adapter_in_model

    model = make_tiny_denoiser(DOUBLE, SINGLE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        inject_adapter_in_model(LoraConfig(r=2, target_modules=r".*(attn\.to_q|proj_mlp)"), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model.train()


def loss_of(model: torch.nn.Module, batch: Batch, shapes: ShapeRuntime) -> torch.Tensor:
    out = predict(model, batch.noisy, batch.sigma, batch.text, 3.5, shapes)
    wanted = [torch.linspace(-1, 1, x.numel(), device=x.device).view_as(x) for x in out]
    return torch.stack([(x - y).square().mean() for x, y in zip(out, wanted, strict=True)]).mean()


class Training:
    """The same batches, losses and updates whatever is swapped, checkpointed or compiled."""

    def __init__(
        self,
        count: int,
        *,
        checkpointing: bool = False,
        kind: str = "off",
        backend: Any = None,
        ring: int = 2,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        model: torch.nn.Module | None = None,
        linear: str = "off",
        dynamic: str = "false",
        mode: str = "static",
        poison: bool = True,
        compiled: Sequence[str] = ("double", "single"),
        full: str | None = None,
        turns: bool = False,
        fresh: bool = True,
    ) -> None:
        """compiled: the block classes that `backend` compiles; the others stay eager.

        full: optimizer of the model's own weights, stepped in the backward pass. turns: the frozen weights leave the
        device after each step, as for a sample that is decoded (offload by turns). fresh: without the graphs of the
        training before it.
        """
        if fresh:
            torch._dynamo.reset()
        self.device, self.dtype, self.turns = torch.device(device), dtype, turns
        self.model = model or denoiser_with_lora(double=DOUBLE, single=SINGLE)
        for parameter in self.model.parameters():
            if not parameter.requires_grad and parameter.dtype == torch.float32:
                parameter.data = parameter.data.to(dtype)
        lists = block_lists(self.model)
        checkpoint(self.model, "block" if checkpointing else kind)
        how = {"ring": ring, "poison": poison, "trained": full is not None}
        self.swap = BlockSwap(self.model, lists, count, self.device, **how) if count else None
        self.model.to(self.device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.01) if full is None else self.fused(full)
        self.report, self.stats = None, CompileStats()
        self.backend, self.linear, self.dynamic, self.lists = backend, linear, dynamic, lists
        self.shapes = ShapeRuntime(mode, 24 if mode == "static" else None, text_length=TEXT)
        if backend is not None:
            within = kind in ("auto", "attention")
            set_activation_budget(None, within, kind == "attention")
            self.report = compile_model(
                self.model,
                {name: lists[name] for name in compiled},
                backend=backend,
                dynamic=dynamic,
                disable_linear=linear,
                recompute=within,
            )

    def fused(self, name: str) -> Tensorwise:
        """The optimizer `name` of all weights, those of swapped blocks with their state on the host."""
        settings = OptimizerSection(optimizer=name, learning_rate=0.01)
        keeper = None if self.swap is None else self.swap.states
        groups = [{"params": self.trained, "lr": 0.01}]
        return Tensorwise(lambda shadows: optimizer_of(settings, shadows), groups, fused=True, keeper=keeper)

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights by name, wherever they are."""
        host = {} if self.swap is None else self.swap.on_host()
        return {n: host.get(id(p), p.detach()).cpu() for n, p in self.model.named_parameters()}

    def batch(self, number: int) -> Batch:
        pair = [SIZES[number % 4], SIZES[number % 4]]
        return make_batch(pair, [TEXT - number % 3, TEXT], seed=number).to(self.device, self.dtype)

    def validate(self) -> float:
        with torch.no_grad():
            return float(loss_of(self.model, self.batch(1000), self.shapes))

    def run(self, steps: int, accumulation: int = 1, validate_every: int = 7) -> list[float]:
        """Losses of all batches and validations, in order."""
        losses, number = [], 0
        telemetry = Telemetry().start()
        for step in range(steps):
            for _ in range(accumulation):
                loss = loss_of(self.model, self.batch(number), self.shapes)
                (loss / accumulation).backward()
                losses.append(loss.detach())
                number += 1
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.turns:
                with offloaded(self.model, self.device):
                    assert not any(p.untyped_storage().nbytes() for p in self.model.proj_out.parameters())
            if step % validate_every == validate_every - 1:
                losses.append(torch.tensor(self.validate()))
        self.stats = telemetry.poll()
        telemetry.stop()
        return [float(loss) for loss in losses]

    def lora(self) -> dict[str, torch.Tensor]:
        return {n: p.detach().cpu() for n, p in self.model.named_parameters() if p.requires_grad}
