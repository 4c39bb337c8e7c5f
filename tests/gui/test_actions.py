"""The buttons of the bar: presets come and go without losing anything, and Start says all that is missing at once."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from backend.config import presets
from backend.config.load import parse
from backend.plan.start_check import start_problems
from backend.queue.folder import QueueFolder
from gui import form, keep_on_load
from gui.actions import Actions
from gui.draft import Draft
from gui.run_store import RunStore
from tests.gui.conftest import make_run


@pytest.fixture
def actions(tmp_path: Path) -> Actions:
    builtin = tmp_path / "builtin"
    builtin.mkdir()
    (builtin / "plain.toml").write_text("# A plain one\n[network]\nnetwork_dim = 4\n", encoding="utf-8")
    (builtin / "broken.toml").write_text("[network]\nnetwork_dimm = 4\n", encoding="utf-8")
    shelf = presets.Shelf(builtin, tmp_path / "user")
    draft = Draft(tmp_path / "draft")
    return Actions(draft, RunStore(lambda: str(tmp_path / "runs"), tmp_path / "places.json"), shelf)


def ask(actions: Actions, what: str, values: form.Values | None = None, **more: Any) -> Any:
    return actions.act({"what": what, **more}, actions.draft.now.values if values is None else values)


def ranked(rank: str) -> form.Values:
    return form.defaults() | {"network.network_dim": rank, "optimizer.learning_rate": "5e-5"}


def test_the_difference_is_shown_before_a_load_and_the_load_is_whole(actions: Actions) -> None:
    shown = ask(actions, "compare", ranked("8"), name="plain").message["difference"]
    assert [(row["label"], row["before"], row["after"]) for row in shown["rows"]] == [
        ("Network rank (dim)", "8", "4"),
        ("Learning rate", "5e-5", "1e-4"),
    ]
    reply = ask(actions, "load", name="plain")
    assert reply.reload and "2 settings changed" in reply.message["notice"]["text"]
    assert actions.draft.now.values == form.defaults() | {"network.network_dim": "4"}
    assert reply.message["draft"]["preset"] == "plain" and reply.message["draft"]["changed"] == []
    assert ask(actions, "undo").reload
    assert actions.draft.now.values == ranked("8")


def test_what_a_person_gave_outlives_a_preset_that_does_not_name_it(actions: Actions) -> None:
    folders = [{"path": "/mine", "num_repeats": 1}]
    mine = {"model.base_model": "/flux", "dataset.folders": folders, "saving.output_name": "fox"}
    form_now = ranked("8") | mine | {"sampling.sample_at_start": True, "validation.validate_at_start": True}
    shown = ask(actions, "compare", form_now, name="plain", keep=True).message["difference"]
    assert shown["kept"] == ["Base model", "Image folders", "Output name"]
    assert [row["label"] for row in shown["rows"]] == [
        "Network rank (dim)", "Learning rate", "Sample before training", "Validate before training"
    ]  # fmt: skip
    ask(actions, "load", name="plain", keep=True)
    assert actions.draft.now.values == form.defaults() | {"network.network_dim": "4"} | mine
    assert sorted(actions.draft.facts()["changed"]) == sorted(mine)
    # What a built-in preset brought is not a person's, and a base model goes only with its family.
    (actions.shelf.builtin / "demo.toml").write_text('[model]\nbase_model = "/demo"\n', encoding="utf-8")
    ask(actions, "load", name="demo")
    assert ask(actions, "compare", name="plain", keep=True).message["difference"]["kept"] == []
    other = '[model]\nfamily = "sdxl"\n[compile]\nshape_mode = "exact_buckets"\n'
    (actions.shelf.builtin / "sdxl.toml").write_text(other, encoding="utf-8")
    shown = ask(actions, "compare", form_now, name="sdxl", keep=True).message["difference"]
    assert shown["kept"] == ["Image folders", "Output name"]


def test_every_preset_but_the_demo_lies_with_its_family() -> None:
    for preset in presets.list_presets():
        config = presets.load(preset).config
        if preset.builtin and not preset.name.startswith("demo"):
            assert config is not None and keep_on_load.family_of(preset.name) == config.model.family
    assert keep_on_load.family_of("demo") is None and keep_on_load.family_of("demo-video") is None


def test_a_preset_with_mistakes_is_not_loaded(actions: Actions) -> None:
    shown = ask(actions, "compare", ranked("8"), name="broken").message["difference"]
    assert shown["rows"] == [] and "network_dim" in shown["problems"][0]["remedy"]
    reply = ask(actions, "load", name="broken")
    assert not reply.reload and reply.message["notice"]["kind"] == "error"
    assert actions.draft.now.values == ranked("8")


def test_save_rename_delete_and_back(actions: Actions) -> None:
    ask(actions, "save-as", ranked("8"), name="mine")
    assert "Replace" in ask(actions, "save-as", ranked("9"), name="Mine").message["notice"]["action"]
    ask(actions, "save", ranked("10"), name="mine")
    ask(actions, "rename", name="mine", to="ours")
    assert actions.draft.now.preset == "ours"
    notice = ask(actions, "delete", name="ours").message["notice"]
    assert "ours" not in {p.name for p in presets.list_presets(actions.shelf)}
    ask(actions, **notice["request"])
    loaded = presets.load(presets.find("ours", actions.shelf)).config
    assert loaded is not None and loaded.network.network_dim == 10


def test_built_in_presets_stay_as_they_are(actions: Actions) -> None:
    for what, more in (("save", {}), ("save-as", {}), ("rename", {"to": "x"}), ("delete", {})):
        assert ask(actions, what, ranked("8"), name="plain", **more).message["notice"]["kind"] == "error"
    loaded = presets.load(presets.find("plain", actions.shelf)).config
    assert loaded is not None and loaded.network.network_dim == 4


def test_a_form_with_mistakes_is_not_saved(actions: Actions) -> None:
    reply = ask(actions, "save-as", ranked("many"), name="mine")
    assert reply.message["refused"] and reply.message["problems"][0]["id"] == "f-network-network_dim"
    assert not (actions.shelf.user / "mine.toml").exists()


@pytest.mark.parametrize("name", ["", "  ", "../evil", "a/b", "con", ".hidden", "x" * 200])
def test_a_name_that_is_no_file_name_is_refused(actions: Actions, name: str) -> None:
    assert ask(actions, "save-as", name=name).message["notice"]["kind"] == "error"
    assert not actions.shelf.user.exists() or not list(actions.shelf.user.iterdir())


def send(actions: Actions, content: bytes, name: str = "from a friend") -> Any:
    return ask(actions, "import", name=name, content=base64.b64encode(content).decode())


def test_settings_of_another_trainer_are_shown_before_they_are_taken(actions: Actions) -> None:
    content = b'network_module = "networks.lora_flux"\nnetwork_dim = 48\nclip_skip = 2\ndataset_config = "d.toml"\n'
    before = dict(actions.draft.now.values)
    brought = send(actions, content, "their settings").message["foreign"]
    assert actions.draft.now.values == before
    assert {"Network rank (dim)"} <= {row["label"] for row in brought["rows"]}
    left = next(group for group in brought["groups"] if group["title"] == "Not imported")
    assert {
        "line": 3,
        "about": "",
        "name": "clip_skip = 2",
        "why": "text encoders are used at the layer that the model's own pipeline uses",
    } in left["notes"]
    assert brought["wantsDataset"]
    dataset = base64.b64encode(b'[[datasets]]\nresolution = 768\n[[datasets.subsets]]\nimage_dir = "cats"\n').decode()
    sent = {"name": "their settings", "content": base64.b64encode(content).decode()}
    assert not ask(actions, "import", **sent, dataset=dataset).message["foreign"]["wantsDataset"]
    taken = ask(actions, "take-import", name="their settings")
    assert taken.reload
    assert actions.draft.now.values["network.network_dim"] == "48"
    assert actions.draft.now.values["dataset.resolution"] == "768"
    assert ask(actions, "take-import", name="another").message["notice"]["kind"] == "error"
    assert "importFailed" in send(actions, b'{"LoRA_type": ').message
    yaml = send(actions, b"---\njob: extension\nconfig:\n  name: x\n").message["foreign"]
    assert yaml["kind"] == "settings of ai-toolkit"
    assert yaml["rest"] == "Settings that it does not have are set to their defaults."
    (other,) = send(actions, b'{"model_family": "ltxvideo"}').message["importFailed"]["problems"]
    assert "the model family ltx_video" in other["text"]


def test_a_data_set_file_leaves_the_rest_of_the_form(actions: Actions) -> None:
    ask(actions, "form", ranked("48"))
    content = b'[[datasets]]\nresolution = 768\n[[datasets.subsets]]\nimage_dir = "cats"\n'
    brought = send(actions, content, "pictures").message["foreign"]
    rows = brought["rows"]
    assert brought["rest"] == "All other settings stay as they are."
    assert {row["label"] for row in rows} >= {"Image folders"} and "Network rank (dim)" not in {
        row["label"] for row in rows
    }
    ask(actions, "take-import", name="pictures")
    assert actions.draft.now.values["dataset.resolution"] == "768"
    assert actions.draft.now.values["network.network_dim"] == "48", "the file says nothing of it"
    controlled = b'[[datasets]]\nimage_directory = "/a"\ncontrol_directory = "/before"\n'
    assert any("takes no control" in str(group) for group in send(actions, controlled).message["foreign"]["groups"])
    ask(actions, "form", ranked("48") | {"model.family": "flux_kontext"})
    send(actions, controlled, "pictures")
    ask(actions, "take-import", name="pictures")
    assert "/before" in str(actions.draft.now.values["dataset.folders"]), "the family of the form edits"


def test_a_file_of_ours_is_shown_and_loaded_or_saved_as_a_preset(actions: Actions) -> None:
    brought = send(actions, b"[network]\nnetwork_dim = 12\n").message["foreign"]
    assert brought["own"] and brought["kind"] == "settings of Monotile"
    assert ("Network rank (dim)", "12") in {(row["label"], row["after"]) for row in brought["rows"]}
    assert not actions.shelf.user.exists() and actions.draft.now.values["network.network_dim"] != "12"
    assert ask(actions, "save-import", name="another").message["notice"]["kind"] == "error"
    ask(actions, "save-import", name="from a friend")
    assert presets.find("from a friend", actions.shelf).path.read_bytes() == b"[network]\nnetwork_dim = 12\n"
    assert ask(actions, "take-import", name="from a friend").reload
    assert actions.draft.now.values["network.network_dim"] == "12"
    send(actions, b"[network]\nnetwork_dim = 13\n", "../../from a friend")
    ask(actions, "save-import", name="../../from a friend")
    assert sorted(p.parent for p in actions.shelf.user.rglob("*.toml")) == [actions.shelf.user] * 2
    # another program's settings are no preset before they are loaded
    assert not send(actions, b'network_module = "networks.lora_flux"\n').message["foreign"]["own"]
    assert ask(actions, "save-import", name="from a friend").message["notice"]["kind"] == "error"


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b'[model]\nbase_model = "C:\\Users\\me"\n', 2, "double quotes"),
        ("[model]\nvariant = '中文'\n".encode("gbk"), 2, "UTF-8"),
        (b"[network]\nnetwork_dimm = 4\n", 2, "network_dimm"),
        (b'[network]\nnetwork_dim = "lots"\n', 2, "lots"),
    ],
)
def test_a_file_with_mistakes_is_not_imported(actions: Actions, content: bytes, line: int, words: str) -> None:
    failed = send(actions, content).message["importFailed"]
    assert failed["problems"][0]["line"] == line and words in failed["problems"][0]["text"]
    assert not actions.shelf.user.exists()


def test_what_is_no_file_at_all_is_said(actions: Actions) -> None:
    assert ask(actions, "import", name="x", content="not base64!").message["notice"]["kind"] == "error"
    assert send(actions, b"#" * 1_100_000).message["notice"]["kind"] == "error"
    assert ask(actions, "sing").message["notice"]["kind"] == "error"


def test_the_settings_of_a_run_can_be_loaded(actions: Actions, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "hare")
    assert ask(actions, "load-run", name=run.name).reload
    assert actions.draft.now.values["saving.output_name"] == "hare"


def test_start_tells_everything_at_once(actions: Actions, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    values = form.defaults() | {
        "model.base_model": str(empty),
        "dataset.folders": [{"path": str(tmp_path / "nowhere")}, {"path": str(empty)}],
        "network.network_dim": "none",
        "training.max_train_steps": "10",
        "training.max_train_epochs": "10",
    }
    reply = ask(actions, "start", values)
    assert reply.message["refused"] and "started" not in reply.message
    errors = [p for p in reply.message["problems"] if p["severity"] == "error"]
    assert {p["path"] for p in errors} == {
        "network.network_dim",
        "training.max_train_steps",
        "model.base_model",
        "dataset.folders[0].path",
        "dataset.folders[1].path",
    }
    assert all(p["text"] and p["remedy"] and p["id"] and p["tab"] for p in errors)
    assert not (tmp_path / "runs").exists()
    queued = ask(actions, "enqueue", values)
    assert queued.message["problems"] == reply.message["problems"] and queued.message["refused"]
    assert QueueFolder.of_page(actions.draft.folder).read().entries == ()


def test_a_folder_for_runs_that_cannot_be_made_is_told_at_its_field(
    actions: Actions, tmp_path: Path, image_folder: Path, tiny_flux: Path
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    values = form.defaults() | {
        "model.base_model": str(tiny_flux),
        "dataset.folders": [{"path": str(image_folder)}],
        "saving.output_dir": str(tmp_path / "file" / "runs"),
    }
    reply = ask(actions, "start", values)
    (problem,) = (problem for problem in reply.message["problems"] if problem["severity"] == "error")
    assert reply.message["refused"] and problem["path"] == "saving.output_dir" and "can't be created" in problem["text"]


def test_what_a_run_needs(tmp_path: Path, image_folder: Path, tiny_flux: Path) -> None:
    whole = {"model": {"base_model": str(tiny_flux)}, "dataset": {"folders": [{"path": str(image_folder)}]}}
    good = parse(whole).config
    assert good is not None and start_problems(good) == []
    bare = parse({}).config
    assert bare is not None and {p.path for p in start_problems(bare)} == {"model.base_model", "dataset.folders"}
    file = image_folder / "picture_0.png"
    wrong = parse(whole | {"dataset": {"folders": [{"path": str(file)}]}}).config
    assert wrong is not None and "not a folder" in start_problems(wrong)[0].text


def test_a_run_stays_in_sight_when_the_form_names_another_folder(tmp_path: Path) -> None:
    kept, started = tmp_path / "page" / "places.json", tmp_path / "elsewhere"
    run = make_run(started)
    assert run.name not in [run.name for run in RunStore(lambda: str(tmp_path / "new"), kept).runs()]
    RunStore(lambda: str(started), kept).started_in(started)
    later = RunStore(lambda: str(tmp_path / "new"), kept)
    assert run.name in [run.name for run in later.runs()] and later.run(run.name).path == run.path
    kept.write_text("{", encoding="utf-8")
    assert RunStore(lambda: str(started), kept).run(run.name).path == run.path


def test_a_tab_that_was_overtaken_shows_the_form_before_it_starts(actions: Actions) -> None:
    old = dict(actions.draft.shown("old"))
    actions.draft.load(ranked("8"), None)
    assert actions.kept(old, "old")["behind"]
    reply = actions.act({"what": "start"}, old, "old")
    assert reply.reload and reply.message["refused"] and "another browser tab" in reply.message["notice"]["text"]
    assert not actions.kept(dict(actions.draft.shown("old")), "old")["behind"]


def test_a_mistake_of_the_page_s_own_is_answered_too(actions: Actions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions.draft, "undo", lambda: 1 / 0)
    notice = ask(actions, "undo").message["notice"]
    assert notice["kind"] == "error" and "ZeroDivisionError" in notice["text"]


def test_the_first_page_of_all_has_the_demo_ready_and_later_ones_the_draft(tmp_path: Path) -> None:
    from gui.app import Home, make_app

    home = Home(presets=tmp_path / "presets", draft=tmp_path / "draft")
    draft = make_app(home).state.draft
    assert draft.now.preset == "demo" and draft.facts()["changed"] == []
    assert not start_problems(form.read(draft.now.values).config)
    assert draft.undo() and draft.now.values == form.defaults()
    assert make_app(home).state.draft.now.values == form.defaults()


def test_a_family_without_the_shape_mode_offers_one_that_it_has(actions: Actions) -> None:
    assert "notice" not in actions.kept(form.defaults() | {"model.family": "sdxl"}), "auto suits every family"
    actions.kept(form.defaults() | {"compile.shape_mode": "static"})
    notice = actions.kept(form.defaults() | {"model.family": "sdxl", "compile.shape_mode": "static"})["notice"]
    assert "shape mode static" in notice["text"]
    reply = actions.act(notice["request"], actions.draft.now.values)
    assert reply.reload and actions.draft.now.values["compile.shape_mode"] == "auto"
    assert not [p for p in reply.message["problems"] if p["severity"] == "error"]
    assert "notice" not in actions.kept(actions.draft.now.values | {"network.network_dim": "8"})
    assert "notice" not in actions.kept(form.defaults() | {"model.family": "flux"})


def test_advice_is_taken_with_one_click_and_undone_with_another(actions: Actions) -> None:
    before = ranked("8")
    values = {"memory.blocks_to_swap": 24, "training.gradient_checkpointing": True, "no.such_setting": 1}
    reply = ask(actions, "apply", before, change=values)
    assert reply.reload and "Blocks to swap" in reply.message["notice"]["text"]
    now = actions.draft.now.values
    assert now["memory.blocks_to_swap"] == "24" and now["network.network_dim"] == "8"
    assert "memory.blocks_to_swap" in reply.message["draft"]["changed"]
    assert ask(actions, "undo").reload and actions.draft.now.values == before
    assert ask(actions, "apply", before, change={"no.such": 1}).message["notice"]["kind"] == "error"
    assert ask(actions, "apply", before).message["notice"]["kind"] == "error"
