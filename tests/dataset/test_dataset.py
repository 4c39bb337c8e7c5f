"""From a config to pictures: paths, splits, validation folders; and the scan as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backend.config.schema import Config
from backend.dataset.__main__ import main
from backend.dataset.items import DatasetScan, Scan
from backend.dataset.scan import cache_folder, scan_dataset
from tests.tiny.pictures import picture, with_caption

ROOT = Path(__file__).resolve().parents[2]


def config(folder: Path | None, cache: Path, **dataset: object) -> Config:
    folders = [] if folder is None else [{"path": str(folder)}]
    return Config.model_validate({"dataset": {"folders": folders, "cache_dir": str(cache), **dataset}})


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Twenty different pictures with captions."""
    for number in range(20):
        with_caption(picture(tmp_path / "many" / f"{number:02}.png", colour=(number, 0, 0)), f"number {number}")
    return tmp_path / "many"


def test_folders_repeats_and_settings_of_problems(many: Path, tmp_path: Path) -> None:
    cfg = Config.model_validate(
        {
            "dataset": {
                "folders": [{"path": str(many), "num_repeats": 3}, {"path": str(tmp_path / "gone")}],
                "trigger_word": "sks",
                "cache_dir": str(tmp_path / "cache"),
            }
        }
    )
    result = scan_dataset(cfg)
    assert {item.repeats for item in result.train.items} == {3}
    assert result.train.items[0].caption == "sks, number 0"
    (problem,) = [p for p in result.problems if p.severity == "error"]
    assert problem.path == "dataset.folders[1].path"


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    (problem,) = scan_dataset(config(None, tmp_path)).problems
    assert (problem.path, problem.severity) == ("dataset.folders", "error")


def test_cache_folder_lies_in_the_project_unless_set(tmp_path: Path) -> None:
    assert cache_folder(Config()) == ROOT / "cache"
    assert cache_folder(config(None, tmp_path / "c")) == tmp_path / "c"


def test_split_is_disjoint_and_stays_when_pictures_are_added(many: Path, tmp_path: Path) -> None:
    cfg = config(many, tmp_path / "c", validation_split=0.2)
    result = scan_dataset(cfg)
    held = {item.path.name for item in result.validation["held out"].items}
    trained = {item.path.name for item in result.train.items}
    assert len(held) == 4 and len(trained) == 16 and not held & trained
    assert scan_dataset(cfg).validation == result.validation
    assert any(finding.kind == "held_out" for finding in result.train.findings)
    with_caption(picture(many / "new.png", colour=(0, 99, 0)))
    later = {item.path.name for item in scan_dataset(cfg).validation["held out"].items}
    assert len(held & later) >= 3
    other = scan_dataset(config(many, tmp_path / "c", validation_split=0.2, validation_split_seed=1))
    assert {item.path.name for item in other.validation["held out"].items} != held


def test_split_keeps_copies_together(many: Path, tmp_path: Path) -> None:
    for path in list(many.glob("*.png")):
        (many / f"copy_{path.name}").write_bytes(path.read_bytes())
    result = scan_dataset(config(many, tmp_path / "c", validation_split=0.25))
    held = {item.key for item in result.validation["held out"].items}
    assert len(held) == 5 == len(result.validation["held out"].items)
    assert not held & {item.key for item in result.train.items}


@pytest.mark.parametrize(("share", "held"), [(0.001, 1), (0.999, 19)])
def test_split_leaves_something_on_both_sides(many: Path, tmp_path: Path, share: float, held: int) -> None:
    result = scan_dataset(config(many, tmp_path / "c", validation_split=share))
    assert (len(result.validation["held out"].items), len(result.train.items)) == (held, 20 - held)


def test_one_picture_can_not_be_split(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"))
    result = scan_dataset(config(tmp_path / "i", tmp_path / "c", validation_split=0.5))
    assert not result.validation and len(result.train.items) == 1
    assert [problem.path for problem in result.problems] == ["dataset.validation_split"]


def test_validation_folders_and_leaks(many: Path, tmp_path: Path) -> None:
    apart, leaking = tmp_path / "apart" / "10_x", tmp_path / "leaking"
    with_caption(picture(apart / "v.png", colour=(0, 0, 200)))
    with_caption(picture(leaking / "w.png", colour=(3, 0, 0)))
    cfg = config(many, tmp_path / "c")
    rows = [{"path": str(path), "name": name} for name, path in (("apart", apart.parent), ("leaking", leaking))]
    result = scan_dataset(Config.model_validate({**cfg.model_dump(), "validation": {"validation_folders": rows}}))
    assert {name: len(scan.items) for name, scan in result.validation.items()} == {"apart": 1, "leaking": 1}
    # Repeats weigh training only.
    assert result.validation["apart"].items[0].repeats == 1
    (leak,) = [finding for finding in result.findings if finding.kind == "leak"]
    assert "w.png" in leak.text and leak.setting == "validation.validation_folders[1].path"
    assert result.captions() == [f"number {n}" for n in range(20)] + ["a caption"]
    assert DatasetScan.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def run(*arguments: str) -> tuple[int, str]:
    written: list[str] = []
    code = main(list(arguments), written.append)
    return code, "".join(written)


def test_command_writes_progress_and_a_result_that_reads_back(many: Path, tmp_path: Path) -> None:
    code, text = run(str(many), "--json", "--progress", "--cache_dir", str(tmp_path / "c"), "--trigger_word", "sks")
    *progress, result = [json.loads(line) for line in text.splitlines()]
    assert code == 0
    assert progress[-1]["kind"] == "progress" and (progress[-1]["done"], progress[-1]["total"]) == (20, 20)
    assert result["kind"] == "result"
    read_back = Scan.from_dict(result["scan"])
    assert len(read_back.items) == 20 and read_back.items[0].caption == "sks, number 0"


def test_command_in_words_and_exit_codes(many: Path, tmp_path: Path) -> None:
    code, text = run(str(many), "--no_cache")
    assert code == 0 and text.startswith("20 images to use of 20 found")
    code, text = run(str(tmp_path / "gone"), "--no_cache")
    assert code == 1 and "does not exist" in text


def test_command_takes_a_config(many: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[dataset]\nvalidation_split = 0.1\n[[dataset.folders]]\npath = '{many}'\n")
    code, text = run("--config", str(file), "--json", "--cache_dir", str(tmp_path / "c"))
    result = DatasetScan.from_dict(json.loads(text)["dataset"])
    assert code == 0 and len(result.train.items) == 18
    file.write_text("[dataset]\nbatchsize = 1\n")
    code, text = run("--config", str(file), "--json")
    assert code == 1 and json.loads(text)["problems"][0]["path"] == "dataset.batchsize"


def test_command_as_a_process_stays_free_of_torch(many: Path, tmp_path: Path) -> None:
    arguments = ["-X", "importtime", "-m", "backend.dataset", str(many), "--json", "--cache_dir", str(tmp_path / "c")]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["scan"]["items"]) == 20
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "backend.dataset.scan_cache" in imported
    assert not imported & {"torch", "diffusers", "transformers", "accelerate", "numpy", "gradio"}
