"""Out of video memory: what torch's messages say, and that a run keeps its last whole step and says what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.compile.memory_shortage import is_out_of_vram
from backend.models.common import weight_loading
from backend.runs.diagnose import explain
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CudaGraphsEvent
from backend.training.oom import Shortage, explanation
from backend.training.trainer import Trainer
from tests.tiny.training import config, events, lora_of, same, state_of, train_here

GB = 2**30
MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.65 GiB of which 412.06 MiB is "
    "free. Process 1234 has 2.00 GiB memory in use. Process 99 has 512.00 MiB memory in use. Including non-PyTorch "
    "memory, this process has 20.71 GiB memory in use. Of the allocated memory 20.01 GiB is allocated by PyTorch, and "
    "143.21 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
LIMITED = (
    "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 77.40 GiB is "
    "free. 1.00 GiB allowed; Of the allocated memory 900.00 MiB is allocated by PyTorch, and 60.00 MiB is reserved by "
    "PyTorch but unallocated."
)
OLDER = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.12 GiB already allocated; "
    "15.62 MiB free; 6.20 GiB reserved in total by PyTorch)"
)


def test_what_torch_says_is_read() -> None:
    shortage = Shortage.read(MESSAGE)
    assert shortage.wanted == int(1.5 * GB) and shortage.total == int(23.65 * GB)
    assert (
        shortage.free == int(412.06 * 2**20) and shortage.ours == int(20.71 * GB) and shortage.others == int(2.5 * GB)
    )
    assert shortage.missing == shortage.wanted - shortage.free
    assert "1.5 GB more were needed, and 0.4 GB of 23.6 GB were free" in shortage.words()
    assert "This run held 20.7 GB, other programs 2.5 GB" in shortage.words()


def test_a_limit_is_named_in_place_of_the_card() -> None:
    shortage = Shortage.read(LIMITED)
    assert shortage.allowed == GB and shortage.ours == 960 * 2**20 and shortage.missing == (256 - 64) * 2**20
    assert "vram_limit_gb allows 1.0 GB" in shortage.words()


@pytest.mark.parametrize("text", [OLDER, "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"])
def test_what_is_not_said_is_not_made_up(text: str) -> None:
    shortage = Shortage.read(text)
    assert shortage.free is None and shortage.missing == shortage.wanted and "None" not in shortage.words()


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_kernels_and_libraries_say_it_in_their_own_words(text: str) -> None:
    assert is_out_of_vram(RuntimeError(text)) and explain(RuntimeError(text)).kind == "cuda_oom"
    assert not is_out_of_vram(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) and not is_out_of_vram(
        ValueError(text)
    )


def full_at(monkeypatch: pytest.MonkeyPatch, call: int, after_backward: bool = False) -> None:
    """Raise torch's own exception when the loss is asked for the `call`-th time."""
    plain, calls = Trainer.loss, []

    def loss(self: Trainer, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == call:
            if after_backward:
                plain(self, batch).backward()
            raise torch.OutOfMemoryError(MESSAGE)
        return plain(self, batch)

    monkeypatch.setattr(Trainer, "loss", loss)


def test_the_last_whole_step_is_kept_and_can_be_resumed(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, code = train_here(config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 5}))
    assert code == 0
    accumulating = {"max_train_steps": 5, "gradient_accumulation_steps": 2}
    plain, code = train_here(config(tiny_flux, image_folder, tmp_path, training=accumulating))
    assert code == 0
    with monkeypatch.context() as patch:
        full_at(patch, 4)
        run, code = train_here(config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 5}))
    assert code == 1
    (error,) = events(run, "error")
    assert error["error_kind"] == "cuda_oom" and "while training" in error["text"]
    assert "step 4: 1 picture of" in error["text"] and "1.5 GB more were needed" in error["text"]
    assert "The LoRA of step 3 is kept" in error["text"]
    run, code = train_here(config(tiny_flux, image_folder, tmp_path), run=run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(whole))

    with monkeypatch.context() as patch:
        # in the second batch of step 3, whose gradients are half there
        full_at(patch, 6, after_backward=True)
        run, code = train_here(config(tiny_flux, image_folder, tmp_path, training=accumulating))
    assert code == 1 and "The LoRA of step 2 is kept" in events(run, "error")[0]["text"]
    assert state_of(run)["lora"]
    run, code = train_here(config(tiny_flux, image_folder, tmp_path), run=run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(plain))


def test_what_samples_or_validation_lose_is_not_the_step_before_them(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import backend.training.measuring

    cfg = config(
        tiny_flux, image_folder, tmp_path, training={"max_train_steps": 4}, dataset={"validation_split": 0.25},
        validation={"validate_every_n_steps": 2, "validate_at_end": False},
    )  # fmt: skip
    straight, code = train_here(cfg)
    assert code == 0

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(MESSAGE)

    with monkeypatch.context() as patch:
        patch.setattr(backend.training.measuring, "validate", full)
        run, code = train_here(cfg)
    assert code == 1 and "The LoRA of step 2 is kept" in events(run, "error")[0]["text"]
    assert run.status().state_step == 2
    run, code = train_here(cfg, run=run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(straight)) and same(state_of(run), state_of(straight))


def test_a_machine_without_ram_keeps_the_last_step_and_does_not_blame_the_files(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own refusal of a petabyte, in a step and while the model loads."""
    plain, calls = Trainer.loss, []

    def loss(self: Trainer, batch: Any) -> Any:
        calls.append(batch)
        return torch.empty(10**15) if len(calls) == 3 else plain(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "loss", loss)
        run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    (error,) = events(run, "error")
    assert code == 1 and error["error_kind"] == "ram" and "while training (step 3" in error["text"]
    assert "more were needed" in error["text"] and "The LoRA of step 2 is kept" in error["text"]
    assert "blocks_to_swap" in error["remedy"]

    monkeypatch.setattr(weight_loading, "_converted", lambda *_: torch.empty(10**15))
    run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    (error,) = events(run, "error")
    assert code == 1 and error["error_kind"] == "ram" and "while loading the base model" in error["text"]


def test_recorded_passes_are_named_first(tmp_path: Path) -> None:
    """They keep memory that a run without them has."""
    writer, error = EventWriter(tmp_path / "events.jsonl"), torch.OutOfMemoryError(MESSAGE)
    assert "cuda_graphs" not in explanation(error, writer, None).remedy
    writer.write(CudaGraphsEvent(state="recorded", shapes=2, seconds=1.0, kept=3 << 30, reason=""))
    assert explanation(error, writer, None).remedy.startswith(
        "Set compile.cuda_graphs to off: recorded passes keep 3.0 GB."
    )
    writer.write(CudaGraphsEvent(state="failed", reason="memory ran out beside them"))
    assert "cuda_graphs" not in explanation(error, writer, None).remedy


def test_three_settings_are_offered_with_what_they_save(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.plan.memory.machine import named_gpu
    from backend.plan.memory.nearest import Search
    from backend.training.expected_memory import ExpectedMemory
    from backend.training.oom import remedy
    from tests.tiny.memory_plans import WORK, flux_dev, settings

    cfg = settings(training={"gradient_checkpointing": False}, dataset={"batch_size": 2})
    search = Search(cfg, WORK.at_batch(2), named_gpu(24), flux_dev())
    estimation = search.after({})
    assert estimation is not None
    text = remedy(ExpectedMemory(search=search, estimate=estimation), "train", GB)
    assert text.startswith("In order of least cost: (1) ") and "(3) " in text and "saves about" in text
    assert "training.gradient_checkpointing = true" in text
    assert "batch_size" in remedy(None, "train", GB) and "smaller samples" in remedy(None, "sample", GB)


def test_a_card_that_is_full_while_encoding_is_told_too(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.training import encoding

    def full(*_: Any, **__: Any) -> int:
        raise torch.OutOfMemoryError(MESSAGE)

    monkeypatch.setattr(encoding, "build_text", full)
    run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    assert code == 1
    (error,) = events(run, "error")
    assert "while encoding the captions" in error["text"] and error["remedy"]
