"""The worker's folder: requests in, pictures and states out, and the reasons for which it ends."""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from backend.preview import worker
from backend.preview.__main__ import _say_who_is_at_work
from backend.preview.carry_out import Studio
from backend.preview.worker import Ending, serve, work_on
from backend.runs import start_lock
from backend.runs.folder import Run
from backend.runs.preview import process
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.request import Follow, LoraUse, PreviewRequest, Row
from tests.tiny.previews import PROMPT, settings, write_lora


def request(base: Path, *loras: Path, **changes: object) -> PreviewRequest:
    rows = tuple(Row(name=path.stem, loras=(LoraUse(path=str(path)),)) for path in loras)
    prompts = (PROMPT.model_copy(update=changes), PROMPT.model_copy(update={"seed": 9}))
    return PreviewRequest(config=settings(base), rows=rows or (Row(name="base model"),), prompts=prompts)


@pytest.fixture
def folder(tmp_path: Path) -> PreviewFolder:
    made = PreviewFolder(tmp_path / "preview")
    made.write_worker(state="ready")
    return made


def test_a_worker_of_its_own_draws_what_is_asked_and_ends_when_it_is_told(tiny_flux: Path, tmp_path: Path) -> None:
    folder = PreviewFolder(tmp_path / "preview")
    lora = write_lora(tmp_path / "x.safetensors", tiny_flux)
    try:
        first = folder.submit(request(tiny_flux, lora))
        process.start(folder, [tmp_path])
        bad = folder.submit(request(tiny_flux, tmp_path / "missing.safetensors"))
        process.start(folder, [tmp_path])
        until = time.monotonic() + 120
        while folder.next_id() is not None and time.monotonic() < until and folder.is_alive():
            time.sleep(0.1)
        done, failed = folder.status(first), folder.status(bad)
        assert done["state"] == "done", folder.log_path.read_text()
        assert [picture["file"] for picture in done["pictures"]] == ["01-01.png", "01-02.png"]
        assert done["account"]["first_s"] > 0 and done["account"]["compiled"] == "off"
        path = folder.picture(first, "01-02.png")
        assert path is not None and Image.open(path).size == (64, 64)
        assert failed["state"] == "failed" and "missing.safetensors" in failed["error"]["text"]
        assert folder.worker()["state"] == "ready" and folder.is_alive()
    finally:
        assert process.end(folder, 60.0)
    assert folder.worker()["why"] == "It was asked to end."
    assert folder.picture(first, "../worker.json") is None and folder.picture("..", "01-01.png") is None


def test_a_cancelled_request_keeps_whole_pictures_and_the_next_one_is_drawn(
    tiny_flux: Path, folder: PreviewFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio, ending = Studio(), Ending(folder=folder, roots=(), has_gpu=False)
    cancelled, later = folder.submit(request(tiny_flux)), folder.submit(request(tiny_flux))
    drawn = worker.StatusWatch.picture
    monkeypatch.setattr(worker.StatusWatch, "picture", lambda *a: (drawn(*a), folder.cancel(a[0].identity)))
    work_on(folder, cancelled, studio, ending)
    monkeypatch.undo()
    assert folder.status(cancelled)["state"] == "cancelled" and len(folder.status(cancelled)["pictures"]) == 1
    assert {path.name for path in folder.pictures_dir(cancelled).glob("*.png")} == {"01-01.png"}
    pipeline = studio.pipeline
    assert folder.next_id() == later
    work_on(folder, later, studio, ending)
    assert folder.status(later)["state"] == "done" and studio.pipeline is pipeline and folder.next_id() is None
    studio.close()


def test_a_pipeline_stays_for_what_fits_and_goes_for_a_larger_lora(tiny_flux: Path, tmp_path: Path) -> None:
    from backend.preview.carry_out import carry_out
    from tests.tiny.silent_watch import Silent

    small, large = (write_lora(tmp_path / f"{rank}.safetensors", tiny_flux, rank=rank) for rank in (4, 8))
    studio = Studio()
    first = carry_out(request(tiny_flux, large), tmp_path / "a", studio, Silent())
    assert carry_out(request(tiny_flux, small), tmp_path / "b", studio, Silent()) is first
    studio.close()
    first = carry_out(request(tiny_flux, small), tmp_path / "c", studio, Silent())
    second = carry_out(request(tiny_flux, large), tmp_path / "d", studio, Silent())
    assert second is not first
    studio.close()
    for one, other in (("a", "d"), ("b", "c")):
        assert (tmp_path / one / "01-01.png").read_bytes() == (tmp_path / other / "01-01.png").read_bytes()


def test_a_run_on_the_same_gpu_ends_the_worker(
    tiny_flux: Path, folder: PreviewFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_lock, "LOCK", tmp_path / "starts" / ".start.lock")
    run = Run.create_empty(tmp_path / "runs", "x")
    on_gpu, on_cpu = (Ending(folder=folder, roots=[tmp_path / "runs"], has_gpu=gpu) for gpu in (True, False))
    assert on_gpu.reason() is None
    # this process stands for the trainer
    os.environ.pop("MONOTILE_RUN", None)
    run.prepare_start(["x"])
    on_gpu._looked = float("-inf")
    assert on_gpu.reason() == f"The run {run.name} needs the GPU." and on_cpu.reason() is None
    # one that is followed waits for the worker by itself
    followed = replace(request(tiny_flux), rows=(), run=str(run.path), follow=Follow())
    identity, on_gpu._looked = folder.submit(followed), float("-inf")
    assert on_gpu.reason() is None
    folder.write_status(identity, {"state": "done"})
    on_gpu._looked = float("-inf")
    assert on_gpu.reason() == f"The run {run.name} needs the GPU."
    run.finish("done")
    on_gpu._looked = float("-inf")
    assert on_gpu.reason() is None
    # nor does a finish time that is measured lie in a folder of runs
    probe = Run.create_empty(tmp_path / ".probes", "probe")
    with start_lock.one_start(lambda: []):
        probe.prepare_start(["x"])
        start_lock.announce_probe(probe)
    on_gpu._looked = float("-inf")
    assert on_gpu.reason() == "The finish time that is being measured needs the GPU." and on_cpu.reason() is None
    console = Console(file=io.StringIO(), width=200)
    _say_who_is_at_work(request(tiny_flux), console)
    assert "a finish time is being measured" in console.file.getvalue()
    probe.finish("done")
    on_gpu._looked = float("-inf")
    assert on_gpu.reason() is None
    folder.ask_to_end()
    assert on_gpu.reason() == "It was asked to end."


def test_a_worker_is_replaced_by_another_process_alone(folder: PreviewFolder) -> None:
    ending, record = Ending(folder=folder, roots=(), has_gpu=False), folder.worker()
    # a clock that was set moves the create time; a file that is gone, or half of one, names nobody
    for content in (json.dumps({**record, "create_time": record["create_time"] + 900}), "{", None):
        folder.worker_path.unlink()
        if content is not None:
            folder.worker_path.write_text(content)
        assert ending.reason() is None
        folder.worker_path.touch()
    folder.worker_path.write_text(json.dumps({**record, "pid": os.getppid()}))
    assert ending.reason() == "Another preview took its place."


def test_a_request_whose_end_can_not_be_written_is_drawn_once(
    tiny_flux: Path, folder: PreviewFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (folder.submit(request(tiny_flux)) for _ in range(2))
    drawn: list[str] = []
    monkeypatch.setattr(worker, "work_on", lambda folder, identity, *_: drawn.append(identity))
    assert "Nothing was asked" in serve(folder, Studio(), Ending(folder=folder, roots=(), has_gpu=False), 0.5)
    assert sorted(drawn) == sorted([first, second])


def test_what_waits_when_a_worker_ends_is_cancelled_with_the_reason(tiny_flux: Path, folder: PreviewFolder) -> None:
    ending = Ending(folder=folder, roots=(), has_gpu=False)
    done, waiting = (folder.submit(request(tiny_flux)) for _ in range(2))
    folder.write_status(done, {"state": "done"})
    time.sleep(0.02)
    folder.ask_to_end()
    time.sleep(0.02)
    # for the worker after it
    later = folder.submit(request(tiny_flux))
    assert serve(folder, Studio(), ending, 5.0) == "It was asked to end."
    assert folder.status(waiting) == {"state": "cancelled", "why": "It was asked to end."}
    assert folder.status(done) == {"state": "done"} and folder.next_id() == later
    folder.clear_stop()
    folder.worker_path.write_text(json.dumps({**folder.worker(), "pid": os.getppid()}))
    assert "took its place" in serve(folder, Studio(), ending, 5.0) and folder.next_id() == later


def test_old_requests_go_and_waiting_ones_stay(tiny_flux: Path, folder: PreviewFolder) -> None:
    ids = [folder.submit(request(tiny_flux)) for _ in range(2)]
    for _ in range(33):
        folder.write_status(folder.submit(request(tiny_flux)), {"state": "done"})
    assert set(ids) <= set(folder.ids()) and folder.next_id() == ids[0] and len(folder.ids()) <= 34
    folder.cancel(ids[0])
    assert folder.is_cancelled(ids[0])
