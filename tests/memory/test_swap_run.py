"""Block swap in whole runs of the real trainer: the loss of the run without, through validation, samples and resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config.schema import Config
from backend.training.requests import Requests
from backend.training.trainer import Trainer
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

UNCHECKED = {"gradient_checkpointing": False}


def settings(base: Path, images: Path, where: Path, memory: dict, **more: dict) -> Config:
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    compile_ = more.pop("compile", {"compile": False})
    training = {"max_train_steps": 6, "gradient_accumulation_steps": 2} | more.pop("training", {})
    return config(
        base, images, where, compile=compile_, memory=memory, training=training,
        network={"targets_include": ["attn.to_q", "proj_mlp", "ff.net.2"]},
        dataset={"validation_split": 0.25},
        sampling={"prompts": [prompt], "sample_every_n_steps": 3, "sample_at_end": False},
        validation={"validate_every_n_steps": 2, "validate_at_end": False},
        **more,
    )  # fmt: skip


def test_a_run_with_swap_is_the_run_without(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Swap with checkpointing beside a run with neither; the next test swaps without."""
    caplog.set_level("INFO")
    plain, code = train_here(settings(tiny_flux, image_folder, tmp_path, {}, training=UNCHECKED))
    assert code == 0
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, {"blocks_to_swap": 3}))
    assert code == 0, events(run, "error")
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(plain)]
    assert [e["loss"] for e in events(run, "validation")] == [e["loss"] for e in events(plain, "validation")]
    assert same(lora_of(run), lora_of(plain))
    assert all(row["swap_wait"] > 0 for row in rows(run)) and rows(plain)[0]["swap_wait"] is None
    (event,) = events(run, "swap")
    assert (event["blocks"], event["of"], event["batches"]) == (3, 4, 2) and not events(plain, "swap")
    assert event["step_limit_seconds"] == pytest.approx(2 * event["moved"] / event["rate"])
    assert "can't be shorter than" in caplog.text


def test_a_stopped_and_resumed_run_with_swap_ends_as_one_that_ran_through(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle of a step; the one that ran through swaps nothing."""
    through, code = train_here(settings(tiny_flux, image_folder, tmp_path, {}, training=UNCHECKED))
    assert code == 0
    batches, plain = [], Trainer.loss
    monkeypatch.setattr(Trainer, "loss", lambda self, batch: batches.append(1) or plain(self, batch))
    monkeypatch.setattr(Requests, "stop", property(lambda self: len(batches) >= 7))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    memory = {"blocks_to_swap": 4, "swap_ring": 3}
    swapped = settings(tiny_flux, image_folder, tmp_path, memory, training=UNCHECKED)
    run, code = train_here(swapped)
    monkeypatch.undo()
    assert code == 0 and events(run, "stopped")[0]["step"] == 3
    run, code = train_here(swapped, run, resume=True)
    assert code == 0, events(run, "error")
    assert len(events(run, "swap")) == 2 and same(state_of(run), state_of(through))
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(through)]


def test_more_blocks_than_there_are_is_refused_with_the_number(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, {"blocks_to_swap": 5}))
    assert code == 2
    (error,) = events(run, "error")
    assert "5 blocks are to be swapped, but this model has 4" in error["text"]


def test_the_compiled_share_is_timed_where_linear_layers_are_left_out(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """Under swap auto makes the planned graphs; with on the plan tells of pieces, none of them a recompile.

    One class of blocks is compiled.
    """
    network = {"targets_include": ["attn.to_q"]}
    for linear, count in (("on", 1), ("auto", 0)):
        cfg = config(
            tiny_flux, image_folder, tmp_path, memory={"blocks_to_swap": 2}, network=network,
            compile={"compile": True, "compile_backend": "eager", "disable_linear": linear,
                     "compile_blocks": [{"blocks": "double", "compile": False}]},
            training={"max_train_steps": 4},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        shares = [event["share"] for event in events(run, "compile") if "share" in event]
        assert len(shares) == count and all(0 < share < 1 for share in shares)
        last = rows(run)[-1]
        (plan,) = events(run, "plan")
        assert (last["breaks"] > 0) == bool(count) and last["recompiles"] == 0
        assert (last["graphs"] == plan["graphs"]["planned"]) != bool(count)
        assert any(finding["kind"] == "linear_out" for finding in plan["findings"]) == bool(count)
        assert not events(run, "recompile") and not [e for e in events(run, "warning") if "graph" in e["text"]]
