"""What is checked while settings are made: the base model, the images and their plan, this machine."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from backend.config.load import parse
from backend.plan import base_model_check as chosen_model
from backend.plan.memory.machine import Gpu, installed_gpus
from backend.runs.picture_table import PictureId, PictureTable, write_table
from gui import base_model, form, form_routes
from gui.dataset_scan import PageScan
from gui.jobs import Job
from tests.gui.conftest import ADDRESS, Page, make_run


def config(base: Path | None = None, folder: Path | None = None, **sections: Any) -> Any:
    data = dict(sections)
    if base:
        data["model"] = {"base_model": str(base), **data.get("model", {})}
    data["dataset"] = {"resolution": 256, "min_bucket_size": 64, **data.get("dataset", {})}
    if folder:
        data["dataset"]["folders"] = [{"path": str(folder)}]
    cfg = parse(data).config
    assert cfg is not None
    return cfg


def wait(job: Job, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while job.state == "running" and time.monotonic() < end:
        time.sleep(0.02)


def test_a_whole_base_model_is_named_with_its_parts(tiny_flux: Path) -> None:
    facts = base_model.facts(config(tiny_flux))
    assert facts["title"] == "FLUX.1" and facts["problems"] == []
    assert {part["place"] for part in facts["parts"]} == {"transformer", "vae", "text_encoder", "text_encoder_2"}
    assert all(part["bytes"] > 0 for part in facts["parts"])
    assert facts["total"] == sum(part["bytes"] for part in facts["parts"])


def test_a_base_model_that_lacks_a_part_says_which(tiny_flux: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(tiny_flux, copy)
    shutil.rmtree(copy / "vae")
    facts = base_model.facts(config(copy))
    assert any("VAE" in problem["text"] for problem in facts["problems"])
    assert next(part for part in facts["parts"] if part["place"] == "vae")["bytes"] is None
    assert base_model.facts(config(tmp_path / "nothing"))["problems"]
    assert base_model.facts(config())["path"] == ""


def test_a_base_model_of_another_family_is_told_in_one_line(tiny_flux: Path) -> None:
    wrong = config(tiny_flux, model={"family": "sdxl"}, compile={"shape_mode": "off"})
    facts = base_model.facts(wrong)
    assert facts["fits"] == {"title": "FLUX.1", "change": {"model.family": "flux"}} and facts["parts"] == []
    assert [(p.path, p.text) for p in chosen_model.problems(wrong)] == [
        ("model.family", "the base model is FLUX.1, but the chosen family is SDXL")
    ]
    assert base_model.facts(config(tiny_flux))["fits"] is None
    # Belongs to no family: its own problems are told.
    assert base_model.facts(config(tiny_flux / "vae"))["fits"] is None
    assert chosen_model.problems(config(tiny_flux / "vae"))[0].path == "model.base_model"


def test_a_scan_counts_lists_and_plans(tmp_path: Path, image_folder: Path, tiny_flux: Path) -> None:
    (image_folder / "broken.png").write_bytes(b"no picture")
    (image_folder / "picture_3.txt").unlink()
    scan = PageScan(tmp_path / "scan")
    cfg = config(tiny_flux, image_folder)
    assert scan.start(cfg) and not scan.start(cfg)
    wait(scan.job)
    facts = scan.facts(cfg)
    assert facts["state"] == "done", facts
    result = facts["result"]
    assert result["counts"]["images"] == 8 and result["counts"]["with_caption"] == 7
    assert (facts["done"], facts["total"]) == (9, 9)
    text = " ".join(problem["text"] for problem in result["problems"])
    assert "broken.png" in text and "picture_3.png" in text
    (missing,) = (problem for problem in result["problems"] if "picture_3.png" in problem["text"])
    assert (missing["id"], missing["label"]) == ("f-dataset-caption_extension", "Caption extension")
    assert "graph" in result["headline"] and "2 block classes" in result["headline"]
    assert [mode["name"] for mode in result["modes"] if mode["chosen"]] == ["static"]
    assert result["histogram"].startswith("<svg") and not result["stale"]
    # The plan follows the form; other images need another scan.
    followed = scan.facts(config(tiny_flux, image_folder, dataset={"batch_size": 2}))["result"]
    assert not followed["stale"] and followed["steps"] != result["steps"]
    assert scan.facts(config(tiny_flux, image_folder, dataset={"caption_extension": ".md"}))["result"]["stale"]
    first = scan.page(0)
    assert len(first["items"]) == 8 and first["pages"] == 1
    assert first["items"][0]["caption"] and first["items"][0]["bucket"] and not first["items"][0]["validation"]
    thumb = scan.thumb(0)
    assert thumb is not None and thumb.startswith(b"\xff\xd8") and scan.thumb(0) == thumb
    assert scan.thumb(8) is None and scan.thumb(-1) is None


def test_captions_of_a_list_are_counted_and_a_trigger_word_alone_is_none(tmp_path: Path, image_folder: Path) -> None:
    rows = [{"image_path": f"images/picture_{number}.png"} for number in range(3)]
    rows = [{**rows[0], "caption": "a fox"}, {**rows[1], "caption": " "}, rows[2]]
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    for file in image_folder.glob("*.txt"):
        file.unlink()
    scan, cfg = PageScan(tmp_path / "scan"), config(None, path, dataset={"trigger_word": "sks "})
    scan.start(cfg)
    wait(scan.job)
    counts = scan.facts(cfg)["result"]["counts"]
    assert (counts["images"], counts["with_caption"]) == (3, 1)


def test_a_scan_of_nothing_says_so(tmp_path: Path) -> None:
    scan = PageScan(tmp_path / "scan")
    scan.start(config(None, tmp_path / "nowhere"))
    wait(scan.job)
    result = scan.facts(None)["result"]
    assert result["counts"]["images"] == 0
    assert (result["headline"], result["steps"], result["modes"]) == ("", "", [])
    assert any("does not exist" in problem["text"] for problem in result["problems"])


def test_the_page_can_start_a_scan_and_show_it(page: Page, application: Any, image_folder: Path) -> None:
    assert "folder" in page.client.post("/scan").json()["detail"]
    (western := image_folder / "picture_0.txt").write_bytes(b"it\x92s a fox")
    (missing := image_folder / "picture_1.txt").unlink()
    folders = {"dataset.folders": [{"path": str(image_folder)}], "dataset.trigger_word": "zorbl"}
    values = form.defaults() | {"saving.output_dir": str(page.runs)} | folders
    application.state.draft.keep(values)
    assert page.client.post("/scan").status_code == 200
    assert ended_scan(page)["result"]["counts"]["images"] == 8
    items = page.client.get("/scan/items").json()
    answer = page.client.get("/thumb", params={"scan": items["scan"], "item": 0})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert page.client.get("/thumb", params={"scan": items["scan"] + 1, "item": 0}).status_code == 404
    losses_of_a_run_sort_the_images(page, items, image_folder)
    captions_are_written_and_taken_back(page, items["scan"], western, missing)
    no_text_is_never_replaced(page, items["scan"], image_folder / "picture_2.txt")
    shown = {"scan": items["scan"], "item": 3}
    measured = {**shown, "run": page.client.get("/scan/items").json()["run"]}
    assert page.client.post("/scan").status_code == 200
    assert page.client.get("/scan/caption", params=shown).status_code == 200, "shown until the next scan has ended"
    assert page.client.get("/scan/losses", params=measured).json()["losses"] is not None
    ended_scan(page)
    assert page.client.get("/scan/caption", params=shown).status_code == 404
    application.state.draft.keep(values | {"network.network_dim": "x"})
    assert page.client.post("/scan").status_code == 422


def ended_scan(page: Page) -> dict[str, Any]:
    """What the page is sent of the scan that is running, once it has ended."""
    end = time.monotonic() + 60
    while (state := page.client.get("/scan").json())["state"] == "running" and time.monotonic() < end:
        time.sleep(0.05)
    return state


def no_text_is_never_replaced(page: Page, scan: int, file: Path) -> None:
    """A picture that stands where the caption would be written stays as it is."""
    content = file.with_suffix(".png").read_bytes()
    file.write_bytes(content)
    answer = page.client.post("/scan/caption", json={"scan": scan, "item": 2, "text": "a fox"})
    assert answer.status_code == 409 and "not a text file" in answer.json()["detail"]
    assert file.read_bytes() == content


def losses_of_a_run_sort_the_images(page: Page, items: dict[str, Any], folder: Path) -> None:
    """Two runs of these images, one of others; the newest is shown, and the images that need a look come first."""
    assert (items["runs"], items["run"], items["order"]) == ([], None, None)
    scanned = [folder / item["name"] for item in items["items"]]
    ends = [0.9, 0.999, 1.2, 0.88, 0.89, 0.9, 0.5]
    for name, last in (("fox", ends), ("again", [0.9] * 7), ("other", [])):
        run = make_run(page.runs, name)
        pictures = [PictureId("", sha256(file.read_bytes()).hexdigest(), "moved") for file in scanned[: len(last)]]
        pictures = pictures or [PictureId("", "of another file", "other.png")]
        table = PictureTable({}).with_moment("start", 0, dict.fromkeys(pictures, 1.0))
        write_table(run, table.with_moment("end", 30, dict(zip(pictures, last or [0.5], strict=True))))
    runs = page.client.get("/scan/items").json()["runs"]
    assert len(runs) == 2 and {name.split("-")[0] for name in runs} == {"fox", "again"}
    (fox,) = [name for name in runs if name.startswith("fox")]

    def sorted_by(order: str, run: str | None = fox) -> dict[str, Any]:
        return page.client.get("/scan/items", params={"order": order, **({"run": run} if run else {})}).json()

    by_verdict = sorted_by("verdict")
    assert by_verdict["run"] == fox and by_verdict["order"] == [2, 1, 6, 0, 5, 4, 3, 7]
    verdicts = [item["losses"] and item["losses"]["verdict"] for item in by_verdict["items"]]
    assert verdicts == ["rose", "not_learnt", "memorised", *["learnt"] * 4, None]
    assert by_verdict["items"][0]["losses"] == {
        "losses": [{"moment": "start", "loss": 1.0}, {"moment": "end", "loss": 1.2}],
        "change": pytest.approx(0.2), "verdict": "rose", "word": "loss rose",
    }  # fmt: skip
    assert sorted_by("change")["order"][:2] == [2, 1] and sorted_by("loss")["order"][-2:] == [6, 7]
    assert sorted_by("", "gone")["run"] in runs and sorted_by("", None)["order"] is None
    assert page.client.get("/scan/items", params={"order": "size"}).status_code == 422
    asked = {"scan": items["scan"], "item": 2, "run": fox}
    assert page.client.get("/scan/losses", params=asked).json()["losses"]["word"] == "loss rose"
    assert page.client.get("/scan/losses", params={**asked, "item": 7}).json()["losses"] is None
    assert page.client.get("/scan/losses", params={**asked, "scan": 99}).json()["losses"] is None
    shown = page.client.get("/live", params={"run": fox}).json()["facts"]["pictures"]
    assert [row["verdict"] for row in shown[:3]] == ["rose", "not_learnt", "memorised"]


def captions_are_written_and_taken_back(page: Page, scan: int, *files: Path) -> None:
    """One whose file is in Windows-1252, and one without a file: each comes back as it was."""
    before = [file.read_bytes() if file.exists() else None for file in files]
    tokens = []
    for index, message in enumerate(("Windows-1252", "no picture_1.txt yet")):
        answer = page.client.get("/scan/caption", params={"scan": scan, "item": index}).json()
        assert message in answer["note"] and answer["text"] == ("it’s a fox", "")[index]
        sent = page.client.post("/scan/caption", json={"scan": scan, "item": index, "text": " ein Füchslein \n"}).json()
        assert sent["caption"] == "zorbl, ein Füchslein"
        tokens.append(sent["token"])
    assert [file.read_text(encoding="utf-8") for file in files] == ["ein Füchslein"] * 2
    shown = page.client.get("/scan/items").json()["items"]
    assert [item["caption"] for item in shown[:2]] == ["zorbl, ein Füchslein"] * 2
    assert "Captions were edited" in page.client.get("/scan").json()["result"]["stale"]
    assert page.client.post("/scan/caption", json={"scan": scan + 1, "item": 0, "text": "x"}).status_code == 404
    for token in tokens:
        assert page.client.post("/scan/caption/undo", json={"token": token}).status_code == 200
    assert [file.read_bytes() if file.exists() else None for file in files] == before
    assert page.client.post("/scan/caption/undo", json={"token": tokens[0]}).status_code == 404


def test_drawings_follow_the_form(page: Page, application: Any) -> None:
    first = page.client.get("/plot/timesteps").json()["svg"]
    application.state.draft.keep(
        form.defaults() | {"timesteps.timestep_sampling": "uniform", "saving.output_dir": str(page.runs)}
    )
    assert page.client.get("/plot/timesteps").json()["svg"] != first
    assert "<svg" in page.client.get("/plot/lr").json()["svg"]


def test_which_settings_are_shown_is_kept(page: Page, application: Any) -> None:
    before = dict(application.state.draft.now.values)
    for level, status in (("basic", 200), ("some", 422), ("all", 200)):
        assert page.client.post("/level", json={"level": level}).status_code == status
        assert application.state.draft.facts()["level"] == (level if status == 200 else "basic")
    assert application.state.draft.now.values == before


def test_this_machine_tells_its_memory(page: Page) -> None:
    facts = page.client.get("/machine").json()
    assert facts["tiles"][0]["label"] == "RAM" and facts["tiles"][0]["value"]


def test_a_card_is_read_from_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform == "win32":
        pytest.skip("a shell script stands for the driver's tool")
    tool = tmp_path / "nvidia-smi"
    name, cells = "NVIDIA GeForce RTX 3060", "12288, 11000, 570.1"
    tool.write_text(f"#!/bin/sh\necho '{name}, {cells}, 8.6'\necho 'odd line'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gpu = Gpu(name, 12288 * 2**20, 11000 * 2**20, "570.1", capability=(8, 6))
    assert installed_gpus() == [gpu]
    # an old one refuses a question that it doesn't know
    tool.write_text(f"#!/bin/sh\ncase $1 in *compute_cap*) exit 2;; esac\necho '{name}, {cells}'\n")
    assert installed_gpus() == [replace(gpu, capability=None)]


def test_the_memory_of_the_form_s_run_is_estimated(page: Page, application: Any, tiny_flux: Path) -> None:
    assert "base model" in page.client.get("/memory").json()["reason"]
    values = form.to_values(config(tiny_flux)) | {"saving.output_dir": str(page.runs)}
    application.state.draft.keep(values)
    facts = page.client.get("/memory", params={"vram": 24}).json()
    assert facts["verdict"] == "fits" and facts["card"]["total"] == 24 * 2**30 and facts["sizes"] == "images of 256 px"
    train = next(stage for stage in facts["stages"] if stage["name"] == "train")
    assert {"weights", "lora", "gradients", "optimizer", "activations"} <= {part["name"] for part in train["parts"]}
    application.state.draft.keep(values | {"dataset.resolution": "512"})
    larger = page.client.get("/memory", params={"vram": 24}).json()
    assert larger["needed"] > facts["needed"], "the estimate follows the form"
    application.state.draft.keep(values | {"memory.blocks_to_swap": "999"})
    (problem,) = page.client.get("/memory", params={"vram": 24}).json()["problems"]
    assert "999 blocks are to be swapped, but this model has 4" in problem and not facts["problems"]
    if not installed_gpus():
        here = page.client.get("/memory").json()
        assert not here["on_card"] and "RAM" in here["headline"]
    assert page.client.get("/memory", params={"vram": -1}).status_code == 422


def test_the_estimate_takes_the_sizes_of_scanned_images(tiny_flux: Path, image_folder: Path) -> None:
    scan = PageScan(image_folder.parent / "scan")
    cfg = config(tiny_flux, image_folder, dataset={"resolution": 256, "min_bucket_size": 64})
    assert scan.work(cfg) is None
    assert scan.start(cfg)
    wait(scan.job)
    assert form_routes.estimate_facts(cfg, scan, 24)["sizes"] == "your images"
    smaller = config(tiny_flux, image_folder, dataset={"resolution": 128, "min_bucket_size": 64})
    estimates = [form_routes.estimate_facts(each, scan, 24) for each in (smaller, cfg)]
    assert [estimation["sizes"] for estimation in estimates] == ["your images"] * 2, "the same images, planned again"
    assert estimates[0]["needed"] <= estimates[1]["needed"]
    other = config(tiny_flux, image_folder, dataset={"caption_extension": ".md"})
    assert form_routes.estimate_facts(other, scan, 24)["sizes"] == "images of 256 px", "the form names others since"


def test_a_job_that_dies_is_failed_and_can_be_started_again() -> None:
    job, messages = Job(), []
    assert job.start(
        "no.such.module", [], messages.append, lambda code, errors: messages.append((code, errors)) or False
    )
    wait(job)
    assert job.state == "failed" and messages[0][0] == 1 and "no.such.module" in messages[0][1]
    assert job.start("no.such.module", [], messages.append, lambda code, errors: False)
    wait(job)


def test_the_compile_cache_is_shown_and_cleared(page: Page, application: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    (folder / "abc" / "inductor").mkdir(parents=True)
    (folder / "abc" / "inductor" / "kernel").write_bytes(b"x" * 5000)
    (folder / "abc" / "key.json").write_bytes(b"{}")
    values = form.defaults() | {"saving.output_dir": str(page.runs), "compile.compile_cache_dir": str(folder)}
    application.state.draft.keep(values)
    assert page.client.get("/cache").json() == {"path": str(folder), "files": 2, "bytes": 5002}
    assert page.client.post("/cache/clear").json()["bytes"] == 5002
    assert page.client.get("/cache").json()["files"] == 0


@pytest.mark.slow
def test_the_compile_cache_is_exported_and_imported(page: Page, application: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    values = form.defaults() | {"saving.output_dir": str(page.runs), "compile.compile_cache_dir": str(folder)}
    application.state.draft.keep(values)
    same = {"origin": ADDRESS}
    refused = page.client.post("/cache/import", content=b"no zip", headers=same)
    assert refused.status_code == 422 and "no compile cache archive" in refused.json()["detail"]
    (kept,) = folder.iterdir()
    (kept / "inductor" / "kernel").write_bytes(b"x" * 5000)
    exported = page.client.get("/cache/export")
    assert exported.headers["content-type"] == "application/zip"
    (kept / "inductor" / "kernel").unlink()
    taken = page.client.post("/cache/import", content=exported.content, headers=same)
    assert taken.status_code == 200 and taken.json()["text"] == "Added 1 files from the file"
    assert (kept / "inductor" / "kernel").read_bytes() == b"x" * 5000


def test_the_page_says_when_a_compile_has_paid_for_itself(page: Page) -> None:
    assert "not known yet" in page.client.get("/payback").json()["text"]
    run = make_run(page.runs)
    assert "not known yet" in page.client.get("/payback", params={"run": run.name}).json()["text"]
    assert page.client.get("/payback", params={"run": "gone"}).status_code == 404


def test_a_profile_says_what_it_sets() -> None:
    sentence = form_routes.profile_words(config(compile={"compile_profile": "max_speed"}))
    assert "Compile mode max-autotune-no-cudagraphs" in sentence and "Recompile limit from the plan" in sentence
    assert form_routes.profile_words(config()) == ""


def test_a_preset_is_exported_as_it_is(page: Page) -> None:
    answer = page.client.get("/preset", params={"name": "flux-lora"})
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    assert answer.content == (form_routes.presets.SHELF.builtin / "flux-lora.toml").read_bytes()
    assert page.client.get("/preset", params={"name": "../pyproject"}).status_code == 404
