"""The draft: kept on the server, undone, restored, and never a reason for the page not to open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gui import form
from gui.app import Home, make_app
from gui.draft import Draft
from gui.run_store import RunStore
from tests.gui.conftest import make_run


def with_rank(rank: str) -> form.Values:
    return form.defaults() | {"network.network_dim": rank}


def test_the_page_is_told_what_the_family_lacks(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    assert "loss.min_snr_gamma" in draft.facts()["lacking"] and "loss.loss_type" not in draft.facts()["lacking"]
    draft.keep(form.defaults() | {"model.family": "sdxl"})
    assert "timesteps.discrete_flow_shift" in draft.facts()["lacking"]
    assert not any(path.startswith("loss.") for path in draft.facts()["lacking"])
    draft.keep(form.defaults() | {"model.family": "half typed"})
    assert draft.facts()["lacking"] == []


def test_parts_and_columns_are_those_of_the_family(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    facts = draft.facts()
    assert "clip_l.safetensors" in facts["parts"]["model.text_encoder"]
    assert "model.text_encoder_2" not in facts["lacking"] and "control_path" in facts["lackingColumns"]
    draft.keep(form.defaults() | {"model.family": "sd15"})
    facts = draft.facts()
    assert "model.text_encoder_2" in facts["lacking"] and "model.text_encoder" not in facts["lacking"]
    assert {"guidance_scale", "text_length", "control_image", "frames"} <= set(facts["lackingColumns"])
    draft.keep(form.defaults() | {"model.family": "flux_kontext"})
    assert (
        "control_path" not in draft.facts()["lackingColumns"] and "control_image_2" in draft.facts()["lackingColumns"]
    )
    assert {"dataset.control_resolution", "model.zero_cond_t"} <= set(draft.facts()["lacking"])
    draft.keep(form.defaults() | {"model.family": "qwen_image_edit_plus"})
    facts = draft.facts()
    assert not {"control_path", "control_image", "control_image_3"} & set(facts["lackingColumns"])
    assert not {"dataset.control_resolution", "model.zero_cond_t"} & set(facts["lacking"])


def test_what_only_one_kind_of_training_has_is_told(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    of_full = {"saving.model_layout", "training.full_weight_dtype", "optimizer.fused_backward"}
    of_lora = {"network.network_dim", "network.network_type", "saving.save_layout"}
    lacking = set(draft.facts()["lacking"])
    assert of_full <= lacking and not of_lora & lacking and "lora_scale" not in draft.facts()["lackingColumns"]
    draft.keep(form.defaults() | {"training.kind": "full"})
    lacking = set(draft.facts()["lacking"])
    assert of_lora <= lacking and not of_full & lacking and "lora_scale" in draft.facts()["lackingColumns"]
    # what both have stays: which parts are trained
    assert "network.targets_include" not in lacking


def test_what_is_of_clips_is_for_families_that_make_them(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    facts = draft.facts()
    assert {"video.target_frames", "video.frame_extraction", "video.target_fps"} <= set(facts["lacking"])
    assert "frames" in facts["lackingColumns"]
    for family, starts in (("wan", False), ("wan_i2v", True)):
        draft.keep(form.defaults() | {"model.family": family})
        facts = draft.facts()
        assert not [path for path in facts["lacking"] if path.startswith("video.")]
        columns = set(facts["lackingColumns"])
        assert "frames" not in columns and {"control_path", "control_image_2"} <= columns
        assert ("control_image" in columns) is not starts


def test_a_draft_survives_the_server(tmp_path: Path) -> None:
    Draft(tmp_path).keep(with_rank("not yet a number"))
    assert Draft(tmp_path).now.values == with_rank("not yet a number")


def test_a_load_can_be_undone_and_redone_also_after_a_restart(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    draft.keep(with_rank("8"))
    draft.load(with_rank("32"), "big")
    draft.keep(with_rank("33"))
    assert draft.facts()["preset"] == "big"
    assert draft.facts()["changed"] == ["network.network_dim"]
    draft = Draft(tmp_path)
    assert draft.undo() and draft.now.values == with_rank("8") and draft.now.preset is None
    assert draft.redo() and draft.now.values == with_rank("33") and draft.now.preset == "big"
    assert draft.undo() and not draft.undo()


def test_a_load_forgets_what_was_undone(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    draft.load(with_rank("8"), "a")
    draft.undo()
    draft.load(with_rank("4"), "b")
    assert not draft.redo()


def test_a_preset_that_is_renamed_or_deleted_keeps_its_form(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    draft.load(with_rank("8"), "a")
    draft.load(with_rank("4"), "b")
    draft.renamed("a", "c")
    draft.renamed("b", None)
    assert draft.now.preset is None and draft.now.values == with_rank("4")
    draft.undo()
    assert draft.now.preset == "c"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1}', '{"version": 99, "now": {}}', '{"version":1,"now":5}']
)
def test_a_broken_draft_is_left_aside(tmp_path: Path, content: str) -> None:
    (tmp_path / "draft.json").write_text(content, encoding="utf-8")
    assert Draft(tmp_path).now.values == form.defaults()


def test_a_draft_that_cannot_be_written_does_not_stop_the_page(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    draft = Draft(blocked / "draft")
    draft.keep(with_rank("8"))
    assert draft.now.values == with_rank("8")


def test_two_tabs_take_nothing_from_each_other(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    first = dict(draft.shown("first"))
    second = dict(draft.shown("second"))
    assert not draft.keep(first | {"network.network_dim": "12"}, "first")
    assert draft.keep(second | {"training.seed": "77"}, "second"), "its form is older than the draft"
    assert (draft.now.values["network.network_dim"], draft.now.values["training.seed"]) == ("12", "77")
    fields = dict(draft.shown("second"))
    assert not draft.keep(fields | {"network.network_dim": "4"}, "second")
    assert draft.now.values["network.network_dim"] == "4"
    # What a tab sent before it heard of a load changes nothing that was loaded.
    draft.load(with_rank("64"), "big")
    assert draft.keep(fields | {"network.network_dim": "4"}, "second")
    assert draft.now.values == with_rank("64")


def test_one_edit_of_a_tab_is_that_edit_alone(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    draft.shown("first")
    draft.shown("second")
    assert not draft.keep({"network.network_dim": "12"}, "first")
    assert draft.keep({"training.seed": "77"}, "second"), "it does not show the first tab's edit"
    assert draft.now.values == with_rank("12") | {"training.seed": "77"}
    draft.shown("second")
    assert not draft.keep({"training.seed": "78"}, "second")
    assert not draft.keep({}, "second"), "a button that sends nothing"
    assert draft.keep({}, "first"), "a button of a tab that is out of date"
    # A server that was started again has not seen the tab: what it did not hear of comes with the next start or save.
    again = Draft(tmp_path)
    assert again.now.values == draft.now.values
    assert not again.keep({}, "first")
    assert not again.keep({"network.network_dim": "4"}, "first")
    assert again.now.values == draft.now.values | {"network.network_dim": "4"}
    on_screen = with_rank("4") | {"training.seed": "5"}
    assert not again.keep(on_screen, "first")
    assert again.now.values == on_screen
    # the first that a server hears of a tab can also be all of it
    last = Draft(tmp_path)
    assert not last.keep(with_rank("6"), "first")
    assert not last.keep({"training.seed": "9"}, "first")
    assert last.now.values == with_rank("6") | {"training.seed": "9"}


def test_new_people_see_basic_settings_and_those_with_a_draft_all(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    assert draft.facts()["level"] == "basic"
    draft.keep(with_rank("8"))
    assert Draft(tmp_path).level == "basic"
    draft.show_level("all")
    assert Draft(tmp_path).level == "all"
    content = json.loads(draft.path.read_text(encoding="utf-8"))
    for odd in ("some", 5, None):
        draft.path.write_text(json.dumps(content | {"level": odd}), encoding="utf-8")
        assert Draft(tmp_path).level == "all" and Draft(tmp_path).now.values == with_rank("8")


def test_who_has_runs_already_sees_all_settings(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    make_run(tmp_path / "elsewhere")
    RunStore(lambda: "", home.draft / "places.json").started_in(tmp_path / "elsewhere")
    assert make_app(home).state.draft.level == "all"
