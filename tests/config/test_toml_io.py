"""TOML out and in: nothing is lost, nothing is half written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from backend.base.errors import WriteFailed
from backend.config.load import load, loads, parse
from backend.config.profiles import apply_profile
from backend.config.schema import SCHEMA_VERSION, Config, ImageFolder, SamplePrompt, Setting, get, settings, with_values
from backend.config.toml_io import dump, dumps, dumps_value, to_data
from tests.tiny.values import configs, other_value

ALL = settings()


@pytest.mark.parametrize("declared", ALL, ids=lambda s: s.path)
def test_every_setting_survives_save_and_load(declared: Setting) -> None:
    """A field that the form shows but the file forgets."""
    cfg = with_values(Config(), {declared.path: other_value(declared)})
    apply_profile(cfg)
    assert loads(dumps(cfg)).partial == cfg


@pytest.mark.parametrize("whole", [False, True])
def test_all_settings_at_once_survive_save_and_load(whole: bool, tmp_path: Path) -> None:
    cfg = with_values(Config(), {declared.path: other_value(declared) for declared in ALL})
    apply_profile(cfg)
    path = tmp_path / "settings.toml"
    dump(cfg, path, whole=whole)
    assert load(path).partial == cfg


@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cfg=configs())
def test_any_config_comes_back_as_it_was(cfg: Config) -> None:
    apply_profile(cfg)
    assert loads(dumps(cfg)).partial == cfg
    assert loads(dumps(cfg, whole=True)).partial == cfg
    # A form gives every value, unset ones too.
    assert parse(cfg.model_dump()).partial == cfg


def test_only_differences_are_written() -> None:
    assert tomllib.loads(dumps(Config())) == {"schema_version": SCHEMA_VERSION}
    cfg = with_values(Config(), {"dataset.batch_size": 2, "sampling.prompts": [{"prompt": "a", "steps": 4}]})
    assert tomllib.loads(dumps(cfg)) == {
        "schema_version": SCHEMA_VERSION,
        "dataset": {"batch_size": 2},
        "sampling": {"prompts": [{"prompt": "a", "steps": 4}]},
    }


def test_whole_holds_everything_that_has_a_value() -> None:
    """The run's own file must not depend on defaults or on anything outside of it."""
    cfg = Config()
    cfg.dataset.folders = [ImageFolder(path="pictures")]
    data = tomllib.loads(dumps(cfg, whole=True))
    for s in ALL:
        value = get(cfg, s.path)
        if value is None or (value == [] and s.kind == "tables"):
            assert s.name not in data[s.section]
        elif s.kind != "tables":
            assert data[s.section][s.name] == value
    assert data["dataset"]["folders"] == [{"path": "pictures", "num_repeats": 1, "is_reg": False}]


def test_zero_and_false_are_values() -> None:
    """0 meant as "off" must not come back as the default."""
    off = {"optimizer.max_grad_norm": 0.0, "optimizer.weight_decay": 0.0, "optimizer.lr_warmup": 0.0}
    off |= {"compile.compile": False, "saving.save_state": False, "training.seed": 0}
    cfg = with_values(Config(), off)
    back = loads(dumps(cfg)).config
    assert back is not None
    assert {path: get(back, path) for path in off} == off


def test_a_list_emptied_on_purpose_is_the_default_again() -> None:
    cfg = Config()
    cfg.sampling.prompts = [SamplePrompt(prompt="a")]
    cfg.sampling.prompts = []
    assert loads(dumps(cfg)).config == Config()


@pytest.mark.parametrize(
    "text",
    [
        r"C:\xampp\new",
        r"\\server\x",
        'a "quoted" one',
        "tab\tnew\nline",
        "猫 🐈",
        "\x7f\x00\x1f",
        "\u2028",
        "a'b",
        "#",
        "",
    ],
)
def test_texts_that_break_other_writers(text: str) -> None:
    cfg = Config()
    cfg.sampling.prompts = [SamplePrompt(prompt=text)]
    cfg.optimizer.optimizer_args = {"name": text, "names": [text, text]}
    assert loads(dumps(cfg)).config == cfg


def test_lone_surrogates_are_refused_before_a_file_is_touched() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        SamplePrompt(prompt="\udcff")


def test_an_old_file_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.toml"
    dump(Config(), path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WriteFailed):
        dump(with_values(Config(), {"dataset.batch_size": 2}), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_utf8_without_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    dump(with_values(Config(), {"dataset.trigger_word": "猫"}), path, comment="für mich\nzweite Zeile")
    raw = path.read_bytes()
    assert raw.startswith("# für mich\n# zweite Zeile\n".encode())
    assert load(path).config is not None


def test_order_is_the_schemas() -> None:
    data = to_data(Config(), whole=True)
    assert list(data) == ["schema_version", *dict.fromkeys(s.section for s in ALL)]


def test_single_values_for_a_form() -> None:
    assert [dumps_value(v) for v in (True, 3, 1e-8, "C:\\x", [1, 2.5])] == [
        "true",
        "3",
        "1e-08",
        '"C:\\\\x"',
        "[1, 2.5]",
    ]


def test_no_secret_of_the_machine_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted = "hf_" + "plantedPLANTED0123456789abcdef"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, planted)
    dump(Config(), tmp_path / "a.toml", whole=True)
    assert planted not in (tmp_path / "a.toml").read_text()
    loaded = loads(
        f'hf_token = "{planted}"\n[model]\nfamily = "{planted}"\nvae = "C:\\{planted}"\n[x]\ntoken="{planted}"'
    )
    message = " ".join(p.sentence() for p in loaded.problems)
    assert "hf_token" in message and planted not in message
