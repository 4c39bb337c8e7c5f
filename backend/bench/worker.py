"""Takes one measurement in its own process: `python -m backend.bench.worker SPEC_JSON` prints one JSON object."""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backend.base.library_imports import library_imports
from backend.bench.clips import bucket_name
from backend.bench.sizes import SIZES
from backend.bench.variants import Spec, Variant, variant
from backend.compile import cache_key

if TYPE_CHECKING:
    from backend.bench.step import Step
    from backend.compile.cuda_graphs.recording import Recorder
    from backend.compile.telemetry import CompileStats

log = logging.getLogger(__name__)

VALIDATION_SIGMAS = (0.05, 0.1, 0.2, 0.35)
STEP_100 = 100
# What is not comparable for a process that started and compiled together with others.
_OF_A_PROCESS_ALONE = ("compile_s", "compile_parts", "step_100_s", "total_s", "second_half_s", "graph_gb")


def measure(spec: Spec) -> dict[str, Any]:
    """Run the spec's steps and return its row. Raises what the variant raises: the caller makes a failed row of it."""
    folder = cache_key.use_cache_folder(spec.cache_dir or None)
    with library_imports():
        import torch

        from backend.bench.step import PROBED, Step, shapes_of

        kind = variant(spec.variant)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # First of all: a mode or route that can't be had here needs no model to say so, nor the libraries of one.
        known = None if kind.route in PROBED else shapes_of(spec, kind, device, folder)

        from backend.bench.profile import compile_parts, written
        from backend.bench.work import DTYPES, Stream, build, frozen_shapes, optimizer_for, swap_of
        from backend.compile.cuda_graphs.recording import record
        from backend.compile.telemetry import Telemetry
        from backend.memory import checkpointing

    wait = _warmed_compiler(spec, kind, device.type)
    shapes, attention = known or shapes_of(spec, kind, device, folder)
    model, lora = build(spec, device)
    wait()
    frozen = frozen_shapes(spec, device)
    weights = sum(t.nbytes for t in (*model.parameters(), *model.buffers()) if not t.requires_grad)
    swap = swap_of(spec, model, device)
    stream = Stream(spec, device, kind.mode == "exact_buckets")
    optimizer = optimizer_for(spec, model, lora, swap)
    checkpointing.set_activation_budget(spec.memory_budget, spec.recomputes, spec.checkpointing_kind == "attention")
    meter = _Meter(device, swap)
    telemetry = Telemetry(folder).start()
    report = _compile(spec, kind, model, shapes)
    if spec.cuda_graphs:
        meter.recorder = record(model)
    autocast = torch.autocast(device.type, DTYPES["bf16"], spec.autocast and SIZES[spec.size].dtype != "fp32")
    collect = (lambda: None) if lora is None else lora.collect_gradients
    step = Step(model, optimizer, shapes, autocast, collect, kind.plain_forward)
    times, losses, graphs_warm = _run(spec, stream, step, telemetry, meter)
    warm = _warm(spec, stream)
    stats = telemetry.poll()
    planned, planned_warm = (_planned(kind, report, stream, shapes, steps) for steps in (len(times), warm))
    telemetry.stop()
    row = {
        **_timed(times, warm),
        **(_by_bucket(times, meter.peaks, warm, stream.buckets) if spec.buckets else {}),
        "bucket_estimated_gb": _estimated(spec, kind, frozen),
        **_counted(stats, planned, graphs_warm + (planned or 0) - (planned_warm or 0)),
        "loss": statistics.fmean(losses[warm:]),
        "buckets": len(stream.buckets),
        "weights_gb": weights / 1e9,
        "compile_parts": written(compile_parts()),
        "route": f"{shapes.route.name}: {shapes.route.detail}{attention}" if kind.mode != "off" else "sdpa: plain",
        "failed_blocks": len(report.failed) if report else 0,
        "notes": _notes(report, telemetry, planned, meter.recorder),
        "losses": losses,
        **meter.row(len(times) - warm),
    }
    if spec.gated:
        row |= dict.fromkeys(_OF_A_PROCESS_ALONE)
    return row | _afterwards(spec, stream, step, device, len(times), row)


def _afterwards(
    spec: Spec, stream: Any, step: Step, device: Any, begin: int, row: Mapping[str, Any]
) -> dict[str, float | int | str]:
    """Columns of what follows the timed steps, from step number `begin` on: profile, synchronisations, validation."""
    from backend.compile.device_syncs import counted_syncs
    from backend.compile.dynamo_counters import limit_hits

    more: dict[str, float | int | str] = {}
    if spec.profile:
        more["profile_ms"] = _profile(spec, stream, step, device.type == "cuda", begin, row["s_per_step"])
    with counted_syncs(device) as syncs:
        step(stream.batch(begin))
    more["syncs"] = syncs.count
    if spec.validate:
        before = limit_hits()
        more["validation_loss"] = _validate(stream, step.forward)
        # without gradients each shape asks for one graph more
        more["limit_hits"] = row["limit_hits"] + limit_hits() - before
    return more


def _warmed_compiler(spec: Spec, kind: Variant, device: str) -> Callable[[], None]:
    """Ready the compiler as a run does; what waits for it, before anything is compiled."""
    from backend.bench.step import PROBED
    from backend.compile.warm_up import CompilerWarmUp

    if kind.compile is None or spec.backend != "inductor" or not spec.warm_up:
        return lambda: None
    compiler = CompilerWarmUp(device).start()
    if kind.route in PROBED:
        compiler.wait()  # the probe compiles first of all
    return compiler.wait


def _profile(spec: Spec, stream: Any, step: Step, cuda: bool, begin: int, seconds: float) -> str:
    """Milliseconds of a step of `seconds` by groups of kernels, from some steps from number `begin` on."""
    from backend.bench import profile

    batches = [stream.batch(begin + number) for number in range(profile.STEPS)]
    milliseconds = profile.profiled(step, batches, spec.rank, cuda)
    return profile.written(profile.with_idle(milliseconds, 1000 * seconds))


def _counted(stats: CompileStats, planned: int | None, expected: int) -> dict[str, float | int | None]:
    """Columns of the record that torch.compile's counts give.

    expected: graphs of the warm steps, and of shapes that the plan knows and that first come later.
    """
    return {
        "compile_s": stats.seconds,
        "graphs": stats.graphs,
        "planned_graphs": planned,
        "recompiles": max(0, stats.graphs - expected),
        "breaks": stats.breaks,
        "limit_hits": stats.limit_hits,
        "cache_hits": stats.cache_hits,
        "cache_misses": stats.cache_misses,
    }


def _warm(spec: Spec, stream: Any) -> int:
    """Steps before the timed ones: a pass over the buckets, and another where what the first showed is recorded."""
    return len(stream.buckets) * (2 if spec.cuda_graphs else 1)


def _timed(times: list[float], warm: int) -> dict[str, float]:
    """Columns of the record that seconds a step give; the first `warm` steps are not timed."""
    timed = times[warm:]
    median = statistics.median(timed)
    return {
        "s_per_step": median,
        "spread": (max(timed) - min(timed)) / median,
        "step_100_s": sum(times) + max(0, STEP_100 - len(times)) * median,
        "total_s": sum(times),
        "second_half_s": sum(times[len(times) // 2 :]),
    }


def _by_bucket(times: list[float], peaks: list[int], warm: int, buckets: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Columns of the record of a video model, whose buckets differ too much for one median: of each bucket its own.

    peaks: bytes of each step, none on a CPU. The seconds a step are then those of a pass over the buckets, divided by
    their number.
    """
    timed = range(warm, len(times))
    members = {at: [number for number in timed if number % len(buckets) == at] for at in range(len(buckets))}
    measured = {bucket_name(buckets[at]): numbers for at, numbers in members.items() if numbers}
    seconds = {name: statistics.median(times[number] for number in numbers) for name, numbers in measured.items()}
    most = {name: max(peaks[number] for number in numbers) for name, numbers in measured.items()} if peaks else {}
    return {
        "s_per_step": statistics.fmean(seconds.values()),
        "bucket_ms": [f"{name}={1000 * each:.1f}" for name, each in seconds.items()],
        "bucket_peak_gb": [f"{name}={each / 1e9:.2f}" for name, each in most.items()],
    }


def _estimated(spec: Spec, kind: Variant, frozen: Mapping[str, tuple[int, ...]]) -> list[str]:
    """A column of the record: bytes that each clip size was estimated at, by the name of its bucket."""
    from backend.bench.estimate import step_bytes

    return [f"{bucket_name(clip)}={each / 1e9:.2f}" for clip, each in step_bytes(spec, kind, frozen).items()]


def _compile(spec: Spec, kind: Variant, model: Any, shapes: Any) -> Any:
    """Compile as the variant says; the report, or None for eager. RuntimeError where this machine can't."""
    from backend.compile.model_compiler import compile_model

    if kind.compile is None:
        return None
    facts = _family(spec).facts
    plain = {blocks.name: getattr(model, blocks.attribute) for blocks in facts.block_classes}
    report = compile_model(
        model,
        plain if kind.plain_forward else _family(spec).block_lists(model),
        backend=spec.backend,
        mode=spec.compile_mode,
        dynamic=shapes.compile_dynamic(kind.dynamic),
        cache_size_limit=kind.limit,
        scope=kind.compile,
        checkpointing=spec.checkpointing,
        recompute=spec.recomputes,
        disable_linear=spec.disable_linear,
    )
    if report.state == "fallback":
        raise RuntimeError(report.reason or "nothing was compiled")
    return report


def _notes(report: Any, telemetry: Any, planned: int | None, recorder: Recorder | None = None) -> str:
    """What failed to compile, why passes were not recorded, and what kept planned graphs from serving."""
    notes = list(report.failed.values()) if report else []
    if planned is not None and len(telemetry.graphs) > planned:
        notes += [f"{graph.kind}: {graph.guard}" for graph in telemetry.graphs if graph.guard]
    if recorder is not None:
        why = recorder.failed or recorder.full or ("" if recorder.recordings else "nothing was recorded")
        notes += [f"CUDA graphs: {why}"] if why else []
    return "; ".join(notes)


def _planned(kind: Variant, report: Any, stream: Any, shapes: Any, steps: int) -> int | None:
    """Graphs that the steps' shapes make; None for diffusers' forward, of which we know nothing.

    None too where linear layers are left out, which breaks blocks into many.
    """
    from backend.bench.planned import planned_graphs

    if kind.plain_forward or (report is not None and report.disable_linear):
        return None
    classes = sum(count > 0 for count in report.blocks.values()) if report else 0
    return planned_graphs(kind, classes, stream, shapes, steps)


def _run(
    spec: Spec, stream: Any, step: Callable[[Any], Any], telemetry: Any, meter: _Meter
) -> tuple[list[float], list[float], int]:
    """Seconds and loss of each step, and the graphs that the warm-up made. Batches are made outside of the clock."""
    times, losses, graphs = [], [], 0
    warm = _warm(spec, stream)
    for number in range(warm + spec.steps):
        batch = stream.batch(number)
        meter.wait()
        if number == warm:
            graphs = telemetry.poll().graphs
            if spec.gated:
                _wait_for_turn()
            meter.steady()
        began = time.perf_counter()
        loss = step(batch)
        meter.wait()
        times.append(time.perf_counter() - began)
        meter.note()
        losses.append(float(loss))
    return times, losses, graphs


def _wait_for_turn() -> None:
    """Say that the timed steps may begin, and wait until it is so: a line on standard input."""
    sys.stdout.write('\n{"ready": true}\n')
    sys.stdout.flush()
    sys.stdin.readline()


def _validate(stream: Any, forward: Callable[[Any], Any]) -> float:
    """Mean loss over held-out images at four fixed noise levels, fixed noise, no gradients."""
    import torch

    with torch.no_grad():
        losses = [
            float(forward(stream.batch(number, "held out", sigma)))
            for sigma in VALIDATION_SIGMAS
            for number in range(len(stream.buckets))
        ]
    return statistics.fmean(losses)


class _Meter:
    """Device memory: the allocator's peak in the timed steps, and what graphs take outside of the allocator.

    What recorded passes keep counts with the peak. With swap also what a timed step waited for weights, and what the
    transfers alone would take.
    """

    def __init__(self, device: Any, swap: Any = None) -> None:
        import torch

        self.swap, self.recorder = swap, None
        self.peaks: list[int] = []
        """Bytes that the allocator held at most in each step; none on a CPU."""
        self.highest = 0
        self.torch, self.device, self.cuda = torch, device, device.type == "cuda"
        self.outside_before = self._outside() if self.cuda else 0

    def _outside(self) -> int:
        """Bytes of this GPU in use beyond torch's allocator: context, kernels, cubins."""
        free, total = self.torch.cuda.mem_get_info(self.device)
        return total - free - self.torch.cuda.memory_reserved(self.device)

    def wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def note(self) -> None:
        """Note a step's peak, and begin the next one's."""
        if self.cuda:
            self.peaks.append(self.torch.cuda.max_memory_allocated(self.device))
            self.highest = max(self.highest, self.peaks[-1])
            self.torch.cuda.reset_peak_memory_stats(self.device)

    def steady(self) -> None:
        self.highest = 0
        if self.cuda:
            self.torch.cuda.reset_peak_memory_stats(self.device)
        if self.swap is not None:
            self.swap.take_waits()

    def row(self, steps: int = 1) -> dict[str, float | str | None]:
        """Columns of the record. steps: timed ones, since `steady`."""
        if not self.cuda:
            return {"peak_gb": None, "graph_gb": None, "device": "cpu", **self._swapped(steps)}
        return {
            **self._swapped(steps),
            "peak_gb": (self.highest + self._kept()) / 1e9,
            "graph_gb": (self._outside() - self.outside_before) / 1e9,
            "device": self.torch.cuda.get_device_name(self.device),
        }

    def _kept(self) -> int:
        """Bytes that recorded passes keep, which the allocator does not count."""
        return 0 if self.recorder is None else self.recorder.kept

    def _swapped(self, steps: int) -> dict[str, float]:
        if self.swap is None:
            return {}
        facts = self.swap.facts
        return {
            "swap_gb": facts.host / 1e9,
            "swap_wait_ms": self.swap.take_waits()() * 1000 / steps,
            "h2d_gb_s": facts.rate / 1e9,
            "swap_limit_ms": facts.limit_seconds * 1000,
        }


def _family(spec: Spec) -> Any:
    from backend.models.family_classes import load_family

    return load_family(SIZES[spec.size].family)


def answer_of(spec: Spec) -> dict[str, Any]:
    """The spec's row, or why there is none, with the seconds that it took."""
    began = time.perf_counter()
    try:
        if spec.extra.get("what") == "exactness":
            from backend.bench.exactness import measure_exactness

            row = measure_exactness(spec)
        else:
            row = measure(spec)
        return {"ok": True, "row": row, "process_s": time.perf_counter() - began}
    except Exception as error:
        # A variant that cannot run here is a result: named in its row.
        log.exception("the measurement failed")
        text = next(iter(str(error).splitlines()), "")
        return {"ok": False, "error": f"{type(error).__name__}: {text}", "process_s": time.perf_counter() - began}


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    answer = answer_of(Spec.from_dict(json.loads(argv[0])))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
