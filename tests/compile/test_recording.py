"""Recorded passes: the results of plain ones, whatever comes between two of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backend.compile import recording
from backend.compile.recording import Recorder, _compare, record
from backend.compile.worth import Trial, verdict
from backend.models.flux.denoise import block_lists, predict
from backend.models.unet import denoise as unet
from backend.shapes.runtime import ShapeRuntime
from tests.shapes.common import Batch, denoiser_with_lora, make_batch
from tests.tiny_sdxl import FIRST_WIDTH, POOLED_WIDTH, SECOND_WIDTH, make_tiny_unet
from tests.training.runs import config, events, rows, train_here


def losses(model: nn.Module, batches: list[Batch], sums: int = 1) -> list[tuple[float, list[Tensor]]]:
    """Loss and gradients of each batch, `sums` passes for each set of gradients."""
    shapes, found = ShapeRuntime("off"), []
    trained = [p for p in model.parameters() if p.requires_grad]
    for number, batch in enumerate(batches):
        with torch.autocast("cuda", torch.bfloat16):
            out = predict(model, batch.noisy, batch.sigma, batch.text, 1.0, shapes)
        loss = torch.stack([row.square().mean() for row in out]).mean()
        loss.backward()
        if (number + 1) % sums == 0:
            found.append((float(loss), [torch.zeros(()) if p.grad is None else p.grad.clone() for p in trained]))
            model.zero_grad(set_to_none=True)
        del out, loss
    return found


def assert_same(found: list[tuple[float, list[Tensor]]], wanted: list[tuple[float, list[Tensor]]]) -> None:
    """Up to the order in which the flash kernel's backward pass adds, in bf16."""
    for (loss, gradients), (wanted_loss, wanted_gradients) in zip(found, wanted, strict=True):
        assert loss == pytest.approx(wanted_loss, rel=1e-4)
        got, want = (torch.cat([g.flatten() for g in some]) for some in (gradients, wanted_gradients))
        assert (got - want).norm() < 1e-2 * want.norm()


def turns(dtype: torch.dtype = torch.bfloat16) -> list[Batch]:
    """Two shapes by turns, other values each time."""
    sizes = [(16, 16), (8, 34)] * 4
    return [make_batch([size], [12], seed=number).to("cuda", dtype) for number, size in enumerate(sizes)]


def test_gradients_are_summed_and_are_not_a_recordings_own() -> None:
    """The next replay overwrites what the last one made."""
    weight = nn.Linear(2, 1, bias=False)
    recorder = record(weight)
    recorder._make_places()
    recorder.made[0].fill_(1.0)
    recorder.add_gradients([True])
    recorder.add_gradients([True])
    recorder.made[0].zero_()
    assert weight.weight.grad.tolist() == [[2.0, 2.0]]
    recorder.add_gradients([False])
    assert weight.weight.grad.tolist() == [[2.0, 2.0]]


def test_without_a_card_nothing_is_recorded_and_said_so(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    plain, recorded = (
        train_here(
            config(
                tiny_flux, image_folder, tmp_path, compile={"compile": False, "cuda_graphs": how},
                training={"gradient_checkpointing": False, "max_train_steps": 3},
            )
        )[0]
        for how in ("auto", "on")
    )  # fmt: skip
    if not torch.cuda.is_available():
        told = [[e["text"] for e in events(run, "warning") if "cuda_graphs" in e["text"]] for run in (plain, recorded)]
        assert told == [[], ["cuda_graphs has no effect on cpu"]], "auto has nothing to say of a CPU"
    assert [row["loss"] for row in rows(recorded)] == [row["loss"] for row in rows(plain)]


@pytest.mark.parametrize("family", ["flux", "sdxl"])
def test_a_denoisers_pass_goes_through_its_recorder(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not its blocks were compiled first, and without a change where it records nothing: on a CPU."""
    if family == "flux":
        (model, plain), batch, code = (denoiser_with_lora() for _ in range(2)), make_batch([(8, 8)], [12]), predict
        given = (batch.noisy, batch.sigma, batch.text)
    else:
        (model, plain), code = (make_tiny_unet() for _ in range(2)), unet.predict
        width = FIRST_WIDTH + SECOND_WIDTH
        text = {"prompt_embeds": torch.randn(77, width), "pooled": torch.randn(POOLED_WIDTH), "time_ids": torch.ones(6)}
        given = ([torch.randn(4, 8, 8)], torch.tensor([500.0]), [text])
    recorder, passed, usual = record(model), [], Recorder.__call__
    monkeypatch.setattr(Recorder, "__call__", lambda self, *all, **n: passed.append(all[0]) or usual(self, *all, **n))
    found, wanted = (code(each, *given, 1.0, ShapeRuntime("off"))[0] for each in (model, plain))
    assert torch.equal(found, wanted)
    assert passed == [model.core if family == "flux" else model] and not recorder.recordings


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sums", [1, 2])
def test_replayed_passes_are_plain_ones(compiled: bool, sums: int) -> None:
    """Two shapes by turns, gradients of one pass and of two."""
    model, plain = (denoiser_with_lora().to("cuda", torch.bfloat16) for _ in range(2))
    for each in (model, plain) if compiled else ():
        for blocks in block_lists(each).values():
            for block in blocks:
                block.forward = torch.compile(block.forward)
    recorder = record(model)
    found = losses(model, turns(), sums)
    assert len(recorder.recordings) == 2 and not recorder.failed
    assert_same(found, losses(plain, turns(), sums))


@pytest.mark.gpu
def test_weights_that_moved_make_recordings_void() -> None:
    model, plain = (denoiser_with_lora().to("cuda", torch.bfloat16) for _ in range(2))
    recorder = record(model)
    losses(model, turns())
    before = dict(recorder.recordings)
    model.to("cpu")
    kept = [torch.empty_like(p, device="cuda") for p in model.parameters()]
    model.to("cuda")
    assert_same(losses(model, turns()), losses(plain, turns()))
    assert len(recorder.recordings) == 2 and not set(before.values()) & set(recorder.recordings.values()) and kept


@pytest.mark.gpu
def test_a_pass_that_cannot_be_recorded_runs_plainly() -> None:
    """Reading a number back is no part of a CUDA graph."""
    model, plain, told = denoiser_with_lora().to("cuda", torch.bfloat16), denoiser_with_lora(), []
    plain.to("cuda", torch.bfloat16)
    block_lists(model)
    core = model.core

    def reads(*given: Any) -> Tensor:
        out = core(*given)
        return out if float(out.sum()) else out

    model.core = reads
    recorder = record(model, told.append)
    assert_same(losses(model, turns()), losses(plain, turns()))
    assert recorder.failed and told == [recorder] and not recorder.recordings


@pytest.mark.parametrize(
    ("share", "free", "against"),
    [(0.95, 24e9, ""), (0.5, 24e9, "does not wait"), (0.95, 22e9, "23.0 GB of the card must be free")],
)
def test_auto_records_where_launching_is_most_of_a_pass_and_memory_is_left(
    share: float, free: float, against: str
) -> None:
    words, reason = verdict(share, int(10e9), int(free))
    assert f"{share:.0%} of a forward pass" in words and against in reason and bool(against) == bool(reason)


def test_a_replay_is_held_against_the_plain_pass() -> None:
    plain = [torch.randn(8), torch.randn(3, 3)]
    _compare("gradients", [value * 1.001 for value in plain], plain)
    _compare("gradients", [torch.full((8,), torch.nan), plain[1]], [torch.full((8,), torch.inf), plain[1]])
    for wrong in (plain[0].roll(1), torch.zeros(8), torch.full((8,), torch.nan)):
        with pytest.raises(RuntimeError, match="replayed gradients are not those of the plain pass"):
            _compare("gradients", [wrong, plain[1]], plain)


def test_recordings_make_room_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Recorder] = []
    recorder = record(nn.Linear(2, 1), told.append)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)

    def runs_out_once(value: int) -> int:
        if recorder.recordings:
            raise torch.OutOfMemoryError("none left")
        return value

    recorder.recordings["a shape"], recorder.kept = object(), 5
    assert recorder._plain(runs_out_once, 3) == 3
    assert told == [recorder] and "memory ran out" in recorder.failed and not recorder.recordings and not recorder.kept
    with pytest.raises(torch.OutOfMemoryError):
        recorder._plain(lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("none left")))


def test_further_shapes_run_plainly_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what those before keep is free for no other, although torch counts it so."""
    told: list[Recorder] = []
    recorder = record(nn.Linear(2, 1), told.append)
    recorder._pool, recorder.kept, recorder.recordings["a shape"] = (0, 1), int(4e9), object()
    monkeypatch.setattr(recording, "free_bytes", lambda: int(9e9))
    recorder._record("another", lambda: None, [], None)
    assert told == [recorder] and list(recorder.recordings) == ["a shape"] and not recorder.failed
    assert recorder.full == "5.0 GB of the card are free beside 1 recorded shapes"


@pytest.mark.gpu
def test_a_recording_that_gives_something_else_is_not_used() -> None:
    """A number of the host's is what it was when it was recorded."""
    model, plain, told = denoiser_with_lora().to("cuda", torch.bfloat16), denoiser_with_lora(), []
    plain.to("cuda", torch.bfloat16)
    block_lists(model)
    core, calls = model.core, []

    def counts(*given: Any) -> Tensor:
        calls.append(1)
        return core(*given) * len(calls)

    model.core = counts
    recorder = record(model, told.append)
    losses(model, turns()[:3])
    assert "not those of the plain pass" in recorder.failed and told == [recorder] and not recorder.recordings


@pytest.mark.gpu
def test_auto_times_three_passes_then_records_or_says_why_not() -> None:
    model, told = denoiser_with_lora().to("cuda", torch.bfloat16), []
    recorder = record(model, told.append, Trial())
    losses(model, turns())
    # Two shapes come first, three passes are timed, three of eight are left.
    assert recorder.trial.decided and recorder.seconds > 0
    assert not recorder.trial.against and len(recorder.recordings) == 2 and recorder.kept > 0, recorder.trial.words
    assert len(told) == 3

    class Never(Trial):
        def _decide(self, held: int) -> None:
            self.words, self.against = verdict(0.1, held, 1 << 40)

    recorder = record(model, told.append, Never())
    losses(model, turns())
    assert "does not wait" in recorder.trial.against and not recorder.recordings and not recorder.made


DROPOUT = {"network_dropout": 0.2, "rank_dropout": 0.2, "module_dropout": 0.2}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "more",
    [
        {"compile": {"compile": False}, "training": {"gradient_checkpointing": False}},
        {"compile": {"compile": True}, "training": {"gradient_checkpointing": True}},
        {"compile": {"compile": True}, "training": {"gradient_checkpointing": False, "gradient_accumulation_steps": 2}},
        {"compile": {"compile": False}, "training": {"gradient_checkpointing": False, "mixed_precision": "fp16"}},
        {
            "compile": {"compile": False},
            "memory": {"checkpointing_kind": "block"},
            "training": {"gradient_checkpointing": True},
        },
        {"compile": {"compile": True}, "training": {"gradient_checkpointing": False}, "network": DROPOUT},
    ],
    ids=["eager", "checkpointed", "accumulated", "fp16", "recomputed", "dropout"],
)  # fmt: skip
def test_a_run_with_recorded_passes_is_the_plain_run(
    more: dict[str, Any], tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Validation and samples between the steps."""
    caplog.set_level(logging.INFO, "backend.compile.recording")
    runs = []
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    for how in ("off", "on"):
        settings = {**more, "compile": {**more["compile"], "cuda_graphs": how}}
        settings["training"] = {"max_train_steps": 12, **more["training"]}
        cfg = config(
            tiny_flux, image_folder, tmp_path, dataset={"validation_split": 0.25}, **settings,
            validation={"validate_every_n_steps": 4}, sampling={"prompts": [prompt], "sample_every_n_steps": 3},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        assert not [event for event in events(run, "warning") if "CUDA graph" in event["text"]]
        runs.append(run)
    plain, recorded = runs
    assert [row["loss"] for row in rows(recorded)] == pytest.approx([row["loss"] for row in rows(plain)], rel=1e-3)
    assert "recorded CUDA graphs of shape 1" in caplog.text
    told = list(events(recorded, "cuda_graphs"))
    assert told[-1]["state"] == "recorded" and told[-1]["shapes"] == len(told) and told[-1]["kept"] > 0
    if not more["compile"]["compile"]:
        untimed = [row["step"] for row in rows(recorded) if row["s_per_step"] is None]
        assert len(untimed) == len(told), "a step in which a shape is recorded is not timed"
