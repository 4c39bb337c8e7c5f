"""Recorded passes: the results of plain ones, whatever comes between two of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backend.compile.recording import record
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
                tiny_flux, image_folder, tmp_path, compile={"compile": False, "cuda_graphs": on},
                training={"gradient_checkpointing": False, "max_train_steps": 3},
            )
        )[0]
        for on in (False, True)
    )  # fmt: skip
    if not torch.cuda.is_available():
        assert [e["text"] for e in events(recorded, "warning") if "cuda_graphs" in e["text"]] == [
            "cuda_graphs has no effect on cpu"
        ]
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
    recorder, passed = record(model), []
    usual = recorder._recording
    monkeypatch.setattr(recorder, "_recording", lambda *all: passed.append(all[0]) or usual(*all))
    found, wanted = (code(each, *given, 1.0, ShapeRuntime("off"))[0] for each in (model, plain))
    assert torch.equal(found, wanted)
    with torch.no_grad():
        code(model, *given, 1.0, ShapeRuntime("off"))
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
    assert recorder.failed and told == [recorder.failed] and not recorder.recordings


@pytest.mark.gpu
@pytest.mark.parametrize(
    "more",
    [
        {"compile": {"compile": False}, "training": {"gradient_checkpointing": False}},
        {"compile": {"compile": True}, "training": {"gradient_checkpointing": True}},
        {"compile": {"compile": True}, "training": {"gradient_checkpointing": False, "gradient_accumulation_steps": 2}},
        {"compile": {"compile": False}, "training": {"gradient_checkpointing": False, "mixed_precision": "fp16"}},
    ],
    ids=["eager", "checkpointed", "accumulated", "fp16"],
)  # fmt: skip
def test_a_run_with_recorded_passes_is_the_plain_run(
    more: dict[str, Any], tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Validation and samples between the steps."""
    caplog.set_level(logging.INFO, "backend.compile.recording")
    runs = []
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    for on in (False, True):
        settings = {**more, "compile": {**more["compile"], "cuda_graphs": on}}
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
