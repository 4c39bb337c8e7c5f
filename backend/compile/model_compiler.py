"""Compiles a model's blocks with torch.compile: `compile_model` is the one place where it is applied.

Blocks are compiled one by one by replacing `block.forward`: the state dict, peft and deepcopy stay clean, hooks on the
block stay eager, and checkpointing, which calls the block, stays outside. All blocks of a class share a code object, so
a class is one graph a shape and gradient mode. Training, sampling and preview use the same function.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.guards
import torch._functorch.config
from torch import nn

from backend.compile import code_kinds, compiled_share
from backend.compile.block_selection import BlockChoice, decide_blocks
from backend.compile.compile_report import CompileReport
from backend.compile.dynamo_counters import limit_hits
from backend.compile.forward_shape import RunningBlock, layout_of, running
from backend.compile.memory_shortage import is_out_of_vram
from backend.compile.torch_config import set_for_all_threads
from backend.config.checkpointing import PARTITIONING
from backend.config.graph_choice import RECORDING_MODES
from backend.setup import toolchain

log = logging.getLogger(__name__)

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_LIMIT_AND_FULLGRAPH = (
    "compile_fullgraph allows no eager call next to graphs, and compile_cache_size_limit leaves no graph to a new shape"
)

_TRI_STATE = {"true": True, "false": False, "auto": None, "none": None}


def tri_state(value: str | bool | None) -> bool | None:
    """`compile_dynamic` as torch.compile takes it: "auto" -> None, "true" -> True, "false" -> False, in any case."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return _TRI_STATE[value.strip().lower()]
    except (KeyError, AttributeError):
        raise ValueError(f"compile_dynamic is {value!r}; it must be auto, true or false") from None


def torch_version() -> tuple[int, int]:
    """Major and minor version of the running torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(re.match(r"\d+", minor)[0])


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside of accelerate's, DDP's and peft's wrappers."""
    while True:
        if hasattr(model, "module") and isinstance(model.module, nn.Module):
            model = model.module
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model


class BlockForward:
    """A block's forward: the compiled one, and the eager one from the moment that its compile fails."""

    def __init__(
        self,
        kind: str,
        name: str,
        eager: Callable[..., Any],
        compiled: Callable[..., Any],
        report: Any,
        recompute: bool = False,
        backend: str = "",
    ) -> None:
        self.kind, self.name, self.backend = kind, name, backend
        self.eager, self.compiled, self.report = eager, compiled, report
        self._recompute = recompute
        self._layout = layout_of(eager.__self__)

    @property
    def recomputes(self) -> bool:
        """Whether its backward graph computes again what it needs, so that nothing outside has to.

        Not from the moment that some shape has no graph: which call will run eagerly is not known before.
        """
        return self._recompute and self.compiled is not None and self.kind not in self.report.limited

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.compiled is None:
            with compiled_share.span("block"), compiled_share.span("left out"):
                return self.eager(*args, **kwargs)
        hits = limit_hits()
        block = RunningBlock(self.kind, self.name, self.eager.__self__.training, self.backend, self._layout)
        with running(block), compiled_share.span("block"):
            try:
                result = self.compiled(*args, **kwargs)
            except torch._dynamo.exc.FailOnRecompileLimitHit as error:
                self._fail(_LIMIT_AND_FULLGRAPH, error)
            # "This can't be compiled". A real mistake of the model comes again from the eager forward.
            except torch._dynamo.exc.TorchDynamoException as error:
                if is_out_of_vram(error):
                    raise
                self._fail(_sentence(error), error)
            else:
                if limit_hits() != hits and self.kind not in self.report.limited:
                    self.report.limited.append(self.kind)
                return result
        return self.eager(*args, **kwargs)

    def _fail(self, reason: str, error: BaseException) -> None:
        self.compiled = None
        self.report.failed[self.name] = reason
        log.warning("%s failed to compile and runs eagerly from now on: %s", self.name, reason)
        log.debug("the whole reason", exc_info=error)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A compiled function is bound to its own block; a copied block gets its own eager forward.
        return copy.deepcopy(self.eager, memo)


def _sentence(error: BaseException) -> str:
    """What a compiler said, in a line: its own error is inside of dynamo's, which only says which backend raised it.

    Of a compiler that is a program of its own, what it wrote is the reason: its first line with an error.
    """
    inner = getattr(error, "inner_exception", None) or error
    first, *more = [line.strip() for line in str(inner).splitlines() if line.strip()] or [type(inner).__name__]
    wrote = toolchain.error_line("\n".join(more))
    return f"{first}: {wrote}" if wrote else first


def disable_linear_layers(module: nn.Module) -> int:
    """Keep every linear layer in `module` out of compiled graphs; returns how many. Quantised and LoRA layers too.

    As musubi-tuner does under block swap: each is one graph break, and what is between them still compiles.
    A LoRA layer goes as a whole, with the layers inside of it.
    """
    done: list[str] = []
    for path, layer in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in done)
        if "linear" in type(layer).__name__.lower() and not inside:
            layer.forward = torch._dynamo.disable(compiled_share.left_out(layer.forward))
            done.append(path)
    return len(done)


def set_recompile_limit(limit: int) -> None:
    """Graphs a code object may have, in all threads. The limit counts all blocks of a class together."""
    config = torch._dynamo.config
    set_for_all_threads(config, "recompile_limit", limit)
    set_for_all_threads(config, "accumulated_recompile_limit", max(256, 8 * limit))


def _refusal(backend: Any, device: torch.device) -> str | None:
    """Why nothing can be compiled here, in words; None when it can."""
    if torch_version() < toolchain.TORCH_FLOOR:
        floor = ".".join(map(str, toolchain.TORCH_FLOOR))
        return f"torch {torch.__version__} is older than {floor}, from which on compiling is supported"
    if backend == "inductor":
        return toolchain.missing_for_inductor(device.type)
    return None


def _configure_torch() -> None:
    """What every compile of ours needs of torch, in all threads."""
    # A backward graph that can't be compiled must fail in the forward, where its block can go eager.
    set_for_all_threads(torch._functorch.config, "force_non_lazy_backward_lowering", True)
    # Quantised layers are autograd functions, whose bodies are part of a graph's key like everything else. Torch
    # leaves such graphs out of its cache unless told; then a warm start traces each of them again.
    with contextlib.suppress(AttributeError):  # a later torch may do without
        set_for_all_threads(torch._functorch.config, "autograd_cache_allow_custom_autograd_functions", True)
    # Torch times the guards of each new graph once, and empties the processor's cache before: 26 ms a graph here, for
    # a number that only its own records have.
    if hasattr(torch._dynamo.guards, "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = _untimed


def _untimed(*_: Any) -> float:
    """Stands for torch's timing of a graph's guards, in microseconds."""
    return 0.0


def _leaves_linear_out(disable_linear: str) -> bool:
    """`disable_linear` as yes or no: auto is no, since swapped weights keep their addresses in the ring."""
    try:
        return {"on": True, "off": False, "auto": False}[disable_linear]
    except KeyError:
        raise ValueError(f"disable_linear is {disable_linear!r}; it must be auto, on or off") from None


def _check_options(backend: Any, mode: str, scope: str, fullgraph: bool, linear: bool) -> None:
    if mode not in MODES:
        raise ValueError(f"compile_mode is {mode!r}; it must be one of {', '.join(MODES)}")
    if scope not in ("blocks", "model"):
        raise ValueError(f"compile_scope is {scope!r}; it must be blocks or model")
    if isinstance(backend, str) and backend not in torch._dynamo.list_backends(exclude_tags=()):
        known = ", ".join(torch._dynamo.list_backends())
        raise ValueError(f"compile_backend is {backend!r}, which torch does not know; known: {known}")
    if fullgraph and linear:
        raise ValueError(
            "compile_fullgraph and disable_linear exclude each other: a linear layer left out is a graph break. "
            "Turn one of them off."
        )


def _torch_mode(mode: str, backend: Any, report: CompileReport) -> str | None:
    """The mode to hand to torch, None for its default; what differs from the one asked for is noted."""
    if backend != "inductor":
        if mode != "default":
            report.notes.append(f"mode {mode} has no effect with backend {backend}")
        return None
    if mode in RECORDING_MODES:
        report.notes.append(f"mode {mode} is {RECORDING_MODES[mode]} with training passes recorded as CUDA graphs")
        mode = RECORDING_MODES[mode]
    report.mode = mode
    return None if mode == "default" else mode


def compile_model(
    model: nn.Module,
    block_lists: Mapping[str, Sequence[nn.Module]],
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str = "default",
    dynamic: str | bool | None = "auto",
    fullgraph: bool = False,
    cache_size_limit: int | None = None,
    disable_linear: str = "off",
    scope: str = "blocks",
    selection: Iterable[BlockChoice] | None = None,
    checkpointing: bool = False,
    recompute: bool = False,
) -> CompileReport:
    """Compile the blocks of `model` in place and say what was done. Call it last: after LoRA, checkpointing, prepare.

    block_lists: the stacks by class name, from the family's `block_lists`; each class is one graph a shape. mode: one
    that records CUDA graphs is compiled as the same without; recording is the caller's
    (`backend.compile.cuda_graphs.recording`). dynamic: auto, true or false in any letter case. cache_size_limit: graphs
    a class may have (None: torch's own limit). disable_linear: auto, on or off; auto leaves linear layers compiled.
    scope: "model" compiles the whole stack as one and excludes checkpointing. selection: exceptions for single blocks.
    recompute: the caller has set the activation budget so that backward graphs recompute
    (`backend.config.checkpointing`).

    Never raises for a machine that can't compile: the report's state is then "fallback" and its reason says why.
    ValueError for options that contradict each other or name what does not exist.
    """
    linear = _leaves_linear_out(disable_linear)
    _check_options(backend, mode, scope, fullgraph, linear)
    report = CompileReport(
        scope=scope, backend=_shown(backend), dynamic=tri_state(dynamic), fullgraph=fullgraph, disable_linear=linear
    )
    inner = unwrap(model)
    decisions = decide_blocks({kind: len(blocks) for kind, blocks in block_lists.items()}, selection, backend)
    report.reason = _refusal(backend, next(inner.parameters()).device)
    if report.reason is None:
        _configure_torch()
        if cache_size_limit is not None:
            set_recompile_limit(cache_size_limit)
            report.limit = cache_size_limit
        torch_mode = _torch_mode(mode, backend, report)
        options = {"mode": torch_mode, "dynamic": report.dynamic, "fullgraph": fullgraph}
        if scope == "model":
            _compile_whole(inner, backend, options, checkpointing, linear, report)
        else:
            report.recompute = recompute and not linear
            _compile_blocks(block_lists, decisions, options, backend, linear, report)
    log.info("%s", report.line())
    return report


def _shown(backend: Any) -> str:
    """A backend's name in logs and reasons."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", "custom")


def _compile_blocks(
    block_lists: Mapping[str, Sequence[nn.Module]],
    decisions: Mapping[str, Sequence[Any]],
    options: dict[str, Any],
    backend: Any,
    linear: bool,
    report: CompileReport,
) -> None:
    for kind, blocks in block_lists.items():
        report.blocks[kind] = 0
        for number, (block, decision) in enumerate(zip(blocks, decisions[kind], strict=True)):
            name = f"{kind} block {number}"
            if decision.backend is None:
                report.eager.append(name)
                continue
            if linear:
                disable_linear_layers(block)
            eager = block.forward
            if isinstance(eager, BlockForward):
                eager = eager.eager
            code_kinds.register(eager, kind)
            mode = options["mode"] if decision.backend == backend else None
            compiled = torch.compile(eager, backend=decision.backend, **(options | {"mode": mode}))
            recompute = report.recompute and decision.backend in PARTITIONING
            block.forward = BlockForward(kind, name, eager, compiled, report, recompute, _shown(decision.backend))
            report.blocks[kind] += 1


def _compile_whole(
    model: nn.Module, backend: Any, options: dict[str, Any], checkpointing: bool, linear: bool, report: CompileReport
) -> None:
    if checkpointing:
        raise ValueError(
            "compile_scope = model cannot be used with gradient checkpointing: torch leaves checkpointed frames out. "
            "Set compile_scope to blocks, or turn checkpointing off."
        )
    if not callable(getattr(model, "core", None)):
        raise ValueError(f"compile_scope = model is not offered for {type(model).__name__}; set it to blocks")
    if linear:
        disable_linear_layers(model)
    eager = model.core.eager if isinstance(model.core, BlockForward) else model.core
    code_kinds.register(eager, "model")
    compiled = torch.compile(eager, backend=backend, **options)
    model.core = BlockForward("model", "the whole model", eager, compiled, report, backend=_shown(backend))
    report.blocks["model"] = 1
