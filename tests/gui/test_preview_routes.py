"""What the Preview tab asks, and what it is told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from backend.base.files import write_atomic
from backend.base.paths import PROJECT_ROOT
from backend.runs import supervise
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent
from backend.runs.preview import process
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.request import PreviewRequest
from backend.runs.process import ProcessId
from gui.draft import Draft
from tests.gui.conftest import Page, make_run

BASE = {"width": 64, "height": 64, "steps": 2}


@pytest.fixture
def folder(page: Page, application: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreviewFolder:
    """The page's worker folder, emptied; no worker is started here."""
    draft: Draft = application.state.draft  # type: ignore[attr-defined]
    made = PreviewFolder.of_page(draft.folder)
    for identity in made.ids():
        made.write_status(identity, {"state": "done"})
    monkeypatch.setattr(process, "start", lambda *_: made.write_worker(state="ready", device="CPU", gpu=False))
    return made


def draw(page: Page, **asked: object) -> tuple[int, dict]:
    answer = page.client.post("/preview/draw", json={"prompts": ["a dot"], **BASE, **asked})
    return answer.status_code, answer.json()


def test_checkpoints_of_a_run_become_the_rows_of_a_request(page: Page, folder: PreviewFolder) -> None:
    run = make_run(page.runs)
    (run.checkpoints_dir / "early.safetensors").write_bytes(b"")
    listed = {each["name"]: each for each in page.client.get("/preview/sources").json()["runs"]}
    assert {file["name"] for file in listed[run.name]["files"]} == {"fox.safetensors", "early.safetensors"}
    # the best one and averages are named, in the list and in the matrix
    for role in ("best", "average"):
        (run.checkpoints_dir / f"{role}.safetensors").write_bytes(b"")
        EventWriter(run).write(CheckpointEvent(step=20, file=f"checkpoints/{role}.safetensors", role=role))
    listed = {each["name"]: each for each in page.client.get("/preview/sources").json()["runs"]}
    titles = {file["name"]: file["title"] for file in listed[run.name]["files"]}
    assert [titles[f"{role}.safetensors"] for role in ("best", "average")] == ["step 20, best", "step 20, average"]
    assert titles["fox.safetensors"] == "step 30" and listed[run.name]["controls"] == 0
    files = ["fox.safetensors", "early.safetensors"]
    code, reply = draw(page, run=run.name, files=files, prompts=["a dot", "", "a ring"], strength=0.5, seed=7)
    assert code == 200, reply
    request = folder.request(reply["request"])
    assert [row.name for row in request.rows] == ["step 30", "early"] and request.rows[0].facts["run"] == run.name
    assert {use.strength for row in request.rows for use in row.loras} == {0.5}
    assert [(each.prompt, each.seed, each.width) for each in request.prompts] == [("a dot", 7, 64), ("a ring", 7, 64)]
    shown = page.client.get("/preview/state").json()
    assert shown["worker"]["alive"] and shown["request"]["state"] == "waiting"
    assert [row["loss"] for row in shown["request"]["rows"]] == [pytest.approx(0.2), None]


def test_pictures_are_served_by_their_names_alone(page: Page, folder: PreviewFolder) -> None:
    run = make_run(page.runs)
    identity = draw(page, run=run.name)[1]["request"]
    (folder.pictures_dir(identity) / "01-01.png").write_bytes(b"\x89PNG")
    answer = page.client.get("/preview/picture", params={"request": identity, "file": "01-01.png"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "image/png"
    # of a clip the frames too, and parts of it
    for name, kind in (("01-02.mp4", "video/mp4"), ("01-02.sheet.png", "image/png")):
        (folder.pictures_dir(identity) / name).write_bytes(b"0123456789")
        part = {"Range": "bytes=2-4"}
        asked = {"request": identity, "file": name}
        answer = page.client.get("/preview/picture", params=asked, headers=part)
        assert (answer.status_code, answer.headers["content-type"], answer.content) == (206, kind, b"234")
    for request, file in ((identity, "request.json"), (identity, "../../worker.json"), ("..", "01-01.png")):
        assert page.client.get("/preview/picture", params={"request": request, "file": file}).status_code == 404


def test_clips_start_from_an_image_that_the_browser_sends(
    page: Page, folder: PreviewFolder, application: object
) -> None:
    from gui import form

    draft: Draft = application.state.draft  # type: ignore[attr-defined]
    base = str(PROJECT_ROOT / "assets" / "demo" / "video" / "base")
    draft.keep(form.defaults() | {"model.base_model": base, "model.family": "wan_i2v"})
    sources = page.client.get("/preview/sources").json()
    assert (sources["controls"], sources["clips"]) == (1, True)
    image = io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(image, "PNG")
    sent = [page.client.post("/preview/control", content=body) for body in (image.getvalue(), b"nothing")]
    assert [each.status_code for each in sent] == [200, 422] and "no image" in sent[1].json()["detail"]
    # kinds that no browser is asked for are not even opened: Pillow gives some of them to other programs
    for kind in ("EPS", "TIFF"):
        other = io.BytesIO()
        Image.new("RGB", (8, 6), "red").save(other, kind)
        refused = page.client.post("/preview/control", content=other.getvalue())
        assert refused.status_code == 422 and "BytesIO" not in refused.text, kind
    damaged = image.getvalue()[:40] + b"\0" * 20
    assert page.client.post("/preview/control", content=damaged).status_code == 422
    path = Path(sent[0].json()["path"])
    assert path.read_bytes() == image.getvalue() and path.parent == folder.controls_dir
    code, reply = draw(page, controls=[f'"{path}"', "left over"], frames=9)
    assert code == 200, reply
    request = folder.request(reply["request"])
    assert (request.prompts[0].control_image, request.prompts[0].control_image_2) == (str(path), None)
    assert [cell.file for cell in request.cells()] == ["01-01.mp4"] and request.prompts[0].frames == 9
    code, reply = draw(page, controls=[""], frames=1)
    assert code == 422 and "starts from a control image" in reply["detail"]
    # a model of pictures takes neither, whatever the form still holds
    draft.keep(form.defaults() | {"model.base_model": str(PROJECT_ROOT / "assets" / "demo" / "base")})
    code, reply = draw(page, controls=[str(path)], frames=9)
    (prompt,) = folder.request(reply["request"]).prompts
    assert code == 200 and not prompt.controls and prompt.frames is None


def test_what_can_not_be_drawn_is_said(page: Page, folder: PreviewFolder) -> None:
    run = make_run(page.runs)
    cases = [
        ({"run": "nobody"}, 404, "no run"),
        ({"run": run.name, "files": ["x.safetensors"]}, 422, "no checkpoint x.safetensors"),
        ({"run": run.name, "prompts": [" "]}, 422, "no prompt"),
        ({"run": run.name, "width": 1}, 422, "width"),
        ({"run": None}, 422, "no base model"),
        ({"run": run.name, "files": ["fox.safetensors"], "prompts": ["x"] * 401}, 422, "401 pictures"),
    ]
    for asked, code, words in cases:
        status, reply = draw(page, **asked)
        assert status == code and words in reply["detail"].lower(), (asked, reply)


def test_memory_is_estimated_before_anything_is_drawn(
    page: Page, folder: PreviewFolder, application: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.plan.memory import preview
    from backend.plan.memory.machine import Gpu
    from gui import form

    assert "no base model" in page.client.post("/preview/plan", json={}).json()["reason"]
    base = str(PROJECT_ROOT / "assets" / "demo" / "base")
    application.state.draft.keep(form.defaults() | {"model.base_model": base})  # type: ignore[attr-defined]
    size = {"width": 512, "height": 512}
    on_cpu = page.client.post("/preview/plan", json=size).json()
    assert on_cpu["verdict"] == "fits" and "the preview computes in RAM" in on_cpu["headline"]
    whole = page.client.post("/preview/plan", json={"width": 2048, "height": 2048}).json()
    assert whole["needed"] > on_cpu["needed"]
    # a GPU that has room for the tiled decoding alone, and for the rest once the worker gives back what it holds
    card = Gpu("GPU", 2 * 2**30, 2**30)
    monkeypatch.setattr(preview, "installed_gpus", lambda: [card])
    big = {"width": 1024, "height": 1024, "changes": {"vae_tiling": "off", "offload_by_turns": "off"}}
    tight = page.client.post("/preview/plan", json=big).json()
    assert tight["verdict"] == "does_not_fit" and tight["nearest"]["values"] == {"memory.vae_tiling": "auto"}
    identity = draw(page)[1]["request"]
    folder.write_status(identity, {"state": "done", "account": {"held_vram": 2**30}})
    held = page.client.post("/preview/plan", json=big).json()
    assert held["room"] == 2 * 2**30 and held["verdict"] == "fits"
    refused = page.client.post("/preview/plan", json={"changes": {"output_dir": "x"}}).json()
    assert "output_dir can't be changed" in refused["reason"]
    code, reply = draw(page, changes={"blocks_to_swap": "1"})
    assert code == 200 and folder.request(reply["request"]).config.memory.blocks_to_swap == 1


def test_a_run_at_work_is_followed_and_its_matrix_is_one_file(page: Page, folder: PreviewFolder) -> None:
    run = make_run(page.runs)
    (run.checkpoints_dir / "late.safetensors").write_bytes(b"")
    code, reply = draw(
        page, run=run.name, follow=True, strength=0.5, loras=[{"path": "/x.safetensors", "strength": 0.5}]
    )
    request = folder.request(reply["request"])
    # it has ended: all that it has, each with the other file
    assert [[Path(use.path).name for use in row.loras] for row in request.rows] == [
        ["fox.safetensors", "x.safetensors"], ["late.safetensors", "x.safetensors"]
    ]  # fmt: skip
    assert request.follow is not None and request.follow.strength == 0.5 and code == 200
    assert PreviewRequest.from_json(request.to_json()) == request
    identity = reply["request"]
    known = [{"name": "step 30", "step": 30}, {"name": "step 40", "step": 40}, {"name": "step 50", "step": 50}]
    folder.write_status(identity, {"state": "drawing", "phase": "wait", "pictures": [], "notes": [], "rows": known})
    shown = page.client.get("/preview/state").json()["request"]
    assert [(row["step"], row["loss"]) for row in shown["rows"]] == [(30, pytest.approx(0.2)), (40, None), (50, None)]
    assert draw(page, follow=True)[0] == 422
    assert page.client.get("/preview/matrix", params={"request": identity}).status_code == 404
    for name in ("01-01.png", "grid.png", "index.html"):
        (folder.pictures_dir(identity) / name).write_bytes(name.encode())
    reply = page.client.get("/preview/matrix", params={"request": identity})
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            name: name for name in ("01-01.png", "grid.png", "index.html")
        }
    assert page.client.get("/preview/matrix", params={"request": "../.."}).status_code == 404


def test_a_request_ends_by_cancel_and_with_its_worker(page: Page, folder: PreviewFolder) -> None:
    run = make_run(page.runs)
    first = draw(page, run=run.name)[1]["request"]
    assert page.client.post("/preview/cancel").status_code == 200 and folder.is_cancelled(first)
    second = draw(page, run=run.name)[1]["request"]
    folder.worker_path.unlink()
    folder.log_path.write_text("a line\nKilled\n")
    shown = page.client.get("/preview/state", params={"request": second}).json()
    assert shown["request"]["state"] == "failed" and "Killed" in shown["request"]["error"]["text"]
    assert not shown["worker"]["alive"] and page.client.post("/preview/end").json() == {"ended": True}


def test_the_forms_base_model_draws_with_a_file(page: Page, folder: PreviewFolder, application: object) -> None:
    from gui import form

    base = str(PROJECT_ROOT / "assets" / "demo" / "base")
    application.state.draft.keep(form.defaults() | {"model.base_model": base})  # type: ignore[attr-defined]
    assert page.client.get("/preview/sources").json()["base"] == base
    code, reply = draw(page, loras=[{"path": "/somewhere/x.safetensors", "strength": 0.3}])
    assert code == 200, reply
    request = folder.request(reply["request"])
    assert request.config.model.base_model == base and request.rows[0].loras[0].strength == 0.3
    assert Path(request.rows[0].loras[0].path).name == "x.safetensors" and request.run is None
    # as a file manager copies a path, and as a path of the settings is meant
    whole, below = Path("/some where/x.safetensors").absolute(), PROJECT_ROOT / "loras" / "x.safetensors"
    for typed, path in ((f' "{whole}" ', whole), ("'loras/x.safetensors'", below)):
        reply = draw(page, loras=[{"path": typed}])[1]
        (use,) = folder.request(reply["request"]).rows[0].loras
        assert Path(use.path) == path
    # several at once, each at its strength, and all of them at several
    files = [{"path": "/a.safetensors", "strength": 0.5}, {"path": " "}, {"path": "/b.safetensors"}]
    request = folder.request(draw(page, loras=files, strengths=[0, 2])[1]["request"])
    assert [row.name for row in request.rows] == ["strength 0", "strength 2"]
    assert [[use.strength for use in row.loras] for row in request.rows] == [[0, 0], [1, 2]]
    (row,) = folder.request(draw(page, loras=files)[1]["request"]).rows
    assert row.name == "a + b"
    code, reply = draw(page, strengths=[0, 1])
    assert code == 422 and "everal strengths" in reply["detail"]


def test_class_images_that_the_forms_folders_lack_are_asked_for(
    page: Page, folder: PreviewFolder, application: object, tmp_path: Path
) -> None:
    """With the base model of the form, though it trains the whole model; each picture is copied into its folder."""
    from gui import form

    base = str(PROJECT_ROOT / "assets" / "demo" / "base")
    values = form.defaults() | {"model.base_model": base, "training.kind": "full", "optimizer.fused_backward": True}
    keep = application.state.draft.keep  # type: ignore[attr-defined]
    keep(values)
    assert page.client.get("/preview/sources").json()["class_images"] is None
    assert page.client.post("/preview/class_images").status_code == 422
    reg = tmp_path / "reg"
    row = {"path": str(reg), "is_reg": True, "class_tokens": "a dog", "class_images": 3}
    keep(values | {"dataset.folders": [row], "dataset.resolution": 256})
    assert page.client.get("/preview/sources").json()["class_images"] == 3
    reply = page.client.post("/preview/class_images").json()
    assert "request" in reply, reply
    request = folder.request(reply["request"])
    assert request.copies == tuple(str(reg / f"class-{number:05d}.png") for number in range(3))
    assert {(prompt.prompt, prompt.width) for prompt in request.prompts} == {("a dog", 256)}
    assert len({prompt.seed for prompt in request.prompts}) == 3 and len(request.cells()) == 3
    keep(values | {"dataset.folders": [row], "model.family": "framepack"})
    reply = page.client.post("/preview/class_images")
    assert reply.status_code == 422 and "from words alone" in reply.json()["detail"]


def test_a_run_that_is_resumed_gets_the_gpu(page: Page, folder: PreviewFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(page.runs)
    folder.clear_stop()
    code = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)"
    held = subprocess.Popen([sys.executable, "-c", code, str(folder.stop_path)])
    write_atomic(folder.worker_path, json.dumps(ProcessId.of(held.pid).to_record()))
    assert folder.is_alive()
    seen: list[bool] = []
    monkeypatch.setattr(supervise, "start", lambda *_, **__: seen.append(folder.is_alive()))
    try:
        assert page.client.post("/resume", json={"run": run.name}).status_code == 200
        assert seen == [False]
    finally:
        held.kill()
        held.wait()
        folder.clear_stop()
