"""Loading: every mistake a person makes in a file, told at once, with line and mend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.base.problems import Problem
from backend.config.load import Loaded, load, loads, parse, ready
from backend.config.schema import Config, get


def only(loaded: Loaded) -> Problem:
    assert len(loaded.problems) == 1, [p.sentence() for p in loaded.problems]
    return loaded.problems[0]


def test_an_empty_file_is_the_defaults() -> None:
    assert loads("").config == Config()
    assert loads("\ufeff".lstrip("\ufeff") + "schema_version = 1\n").problems == []


def test_absent_keys_take_their_default_and_nothing_else() -> None:
    """A preset leaves nothing of an earlier one behind."""
    first = loads("[dataset]\nbatch_size = 4\ncaption_dropout_rate = 0.1").config
    second = loads("[dataset]\nresolution = 512").config
    assert first is not None and second is not None
    assert (second.dataset.batch_size, second.dataset.caption_dropout_rate) == (1, 0.0)


def test_the_whole_data_set_is_in_the_file() -> None:
    text = "[[dataset.folders]]\npath = 'a'\n[[dataset.folders]]\npath = 'b'\nnum_repeats = 3"
    cfg = loads(text).config
    assert cfg is not None
    assert [(f.path, f.num_repeats) for f in cfg.dataset.folders] == [("a", 1), ("b", 3)]


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        (r'base_model = "C:\Users\me"', r"base_model = 'C:\Users\me'"),
        (r'base_model = "D:\models\flux"', r"base_model = 'D:\models\flux'"),
        (r'base_model = "C:\xampp"', r"base_model = 'C:\xampp'"),
        ('base_model = "C:\\"', "base_model = 'C:\\'"),
        (r'base_model = "C:\Users\o' + "'" + r'neil"', 'base_model = "C:/Users/o' + "'" + 'neil"'),
    ],
)
def test_backslashes_in_double_quotes(line: str, mended: str) -> None:
    """The line and the fix are named, and the value is understood for the rest of the checks."""
    loaded = loads(f"# mine\n\n[model]\n{line}\n[dataset]\nbatch_size = 0\n")
    assert [p.line for p in loaded.problems] == [4, 6]
    assert loaded.problems[0].path == "model.base_model"
    assert mended in loaded.problems[0].remedy
    assert loaded.config is None
    assert loads(f"[model]\n{mended}").config is not None


def test_backslashes_that_are_codes_by_chance() -> None:
    r"""A path in double quotes: "C:\temp\new" is valid TOML, and means a tab and a new line."""
    problem = only(loads('[model]\nbase_model = "C:\\temp\\new"'))
    assert problem.line == 2 and "control character" in problem.text and "single quotes" in problem.remedy


@pytest.mark.parametrize(
    ("encoding", "word"), [("gbk", "GBK"), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("cp1252", "1252")]
)
def test_other_encodings(tmp_path: Path, encoding: str, word: str) -> None:
    text = {"cp1252": "# für Katzen\n[dataset]\ntrigger_word = 'Kätzchen'\n"}.get(
        encoding, "# 训练设置\n[dataset]\ntrigger_word = '小猫咪和狗'\n"
    )
    (tmp_path / "a.toml").write_bytes(text.encode(encoding))
    problem = only(load(tmp_path / "a.toml"))
    assert problem.line == 1
    assert word in problem.text and "UTF-8" in problem.text and "UTF-8" in problem.remedy


BINARY = {
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x28\x00\x00\x00\x14\x08\x02": "a PNG picture",
    b"\xff\xd8\xff\xe0\x00\x10JFIF": "a JPEG picture",
    b"RIFF\x10\x00\x00\x00WEBPVP8 ": "a WebP picture",
    b"PK\x03\x04\x14\x00": "a ZIP archive",
    b'\x10\x00\x00\x00\x00\x00\x00\x00{"__metadata__": {}}': "a safetensors file",
}


@pytest.mark.parametrize("content", BINARY, ids=BINARY.get)
def test_what_is_no_settings_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(content + bytes(range(256)) * 4)
    problem = only(load(tmp_path / "a.toml"))
    assert BINARY[content] in problem.text and ".toml" in problem.remedy


def test_a_stray_zero_byte_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"[dataset]\nbatch_size = 2\ntrigger_word = 'a\x00b'\n")
    problem = only(load(tmp_path / "a.toml"))
    assert problem.line == 3 and "NUL" in problem.text and "1252" not in problem.sentence()


@pytest.mark.skipif(os.name == "nt", reason="pipes in folders exist on POSIX only")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    assert "pipe" in only(load(tmp_path / "a.toml")).text


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[dataset]\r\nbatch_size = 2\r\nresolutoin = 1\r\n")
    problem = only(load(tmp_path / "a.toml"))
    assert problem.line == 3 and "dataset.resolution" in problem.remedy


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("compile = True", "small letters"),
        ("text_length = None", "remove the line"),
        ("output_name = my lora", "quotes"),
        ("output_name = “a”", "straight"),
        ("seed: 3", "="),
        ("seed =", "value"),
        ("learning_rate = .5", "0 before"),
        ("learning_rate = 1,5", "point"),
        ("learning_rate = 1.", "digit"),
        ("seed = 007", "zeros"),
        ("my seed = 3", "_"),
        ("just words", "name = value"),
        ("seed = 1\nseed = 2", "one of the lines"),
        ("[model]\n[model]", "second into the first"),
        ("[[a]]\n[a]", "[["),
        ("x = [1,\n2", "bracket"),
        ("x = '''a", "quote"),
    ],
)
def test_syntax_errors_have_line_and_fix(text: str, word: str) -> None:
    loaded = loads(text)
    assert loaded.config is None
    assert all(p.line in (1, 2) for p in loaded.problems)
    assert any(word in p.remedy for p in loaded.problems), [p.sentence() for p in loaded.problems]


def test_all_syntax_errors_and_all_others_at_once() -> None:
    text = """
[model]
family = flux
weight_dtype = "bf61"
[[dataset.folders]]
path = "C:\\Users\\me"
[[dataset.folders]]
path = cats
[training]
seed = 1
seed = 2
max_train_steps = 5
max_train_epochs = 5
"""
    loaded = loads(text)
    assert [(p.line, p.path) for p in loaded.problems] == [
        (3, "model.family"),
        (4, "model.weight_dtype"),
        (6, "dataset.folders[0].path"),
        (8, "dataset.folders[1].path"),
        (11, "training.seed"),
        (12, "training.max_train_steps"),
    ]


def test_every_kind_of_mistake_at_once_with_lines() -> None:
    text = """train_batch_size = 4
[dataset]
resolution = true
min_bucket_size = 3000
batch_sise = 2
folders = [
  { path = "a", num_repeats = 0 },
  { pfad = "b" },
]
[optimiser]
x = 1
[optimizer]
betas = [0.9, 1.5]
optimizer = "adamv"
[[sampling.prompts]]
prompt = "a"
steps = "many"
"""
    loaded = loads(text)
    places = {(p.line, p.path) for p in loaded.problems}
    assert places == {
        (1, "train_batch_size"),
        (3, "dataset.resolution"),
        (4, "dataset.min_bucket_size"),
        (5, "dataset.batch_sise"),
        (6, "dataset.folders[0].num_repeats"),
        (6, "dataset.folders[1].path"),
        (6, "dataset.folders[1].pfad"),
        (10, "optimiser"),
        (13, "optimizer.betas[1]"),
        (14, "optimizer.optimizer"),
        (17, "sampling.prompts[0].steps"),
    }
    assert loaded.config is None and loaded.partial is not None
    assert loaded.partial.dataset.resolution == 1024, "what could not be read is the default"
    assert loaded.partial.dataset.min_bucket_size == 3000, "what could be read is kept"
    assert {p.setting for p in loaded.problems} >= {"dataset.folders", "sampling.prompts", "optimizer.betas"}


def test_rules_run_beside_type_errors_but_not_on_unread_values() -> None:
    loaded = loads(
        '[training]\nmax_train_steps = 5\nmax_train_epochs = 2\nseed = "x"\n[dataset]\nmin_bucket_size = "x"'
    )
    assert {p.path for p in loaded.problems} == {"training.max_train_steps", "training.seed", "dataset.min_bucket_size"}


@pytest.mark.parametrize(
    ("name", "section", "remedy"),
    [
        ("batch_sise", "dataset", "dataset.batch_size"),
        ("batch-size", "dataset", "batch_size"),
        ("Batch_Size", "dataset", "batch_size"),
        ("train_batch_size", "dataset", "dataset.batch_size"),
        ("unet_lr", "optimizer", "optimizer.learning_rate"),
        ("learning_rate", "training", "[optimizer]"),
        ("rank", "network", "network.network_dim"),
        ("lora_rnak", "network", "network.network_dim"),
        ("network_module", "network", "remove the line"),
        ("fp8_base", "model", "memory.base_quantization"),
        ("lowram", "model", "does not offer it yet"),
        ("wandb_api_key", "logging", "Secrets"),
        ("qwertzuiop", "model", "docs/settings.md"),
    ],
)
def test_unknown_names_are_refused_with_what_was_meant(name: str, section: str, remedy: str) -> None:
    problem = only(loads(f"[{section}]\n{name} = 1"))
    assert problem.severity == "error" and problem.path == f"{section}.{name}" and problem.line == 2
    assert name in problem.text and remedy in problem.remedy


def test_unknown_names_at_the_top_and_in_rows() -> None:
    assert "dataset.batch_size" in only(loads("batch_size = 3")).remedy
    assert "[dataset]" in only(loads("[datasets]\nx = 1")).remedy
    assert "num_repeats" in only(loads("[[dataset.folders]]\npath = 'a'\nrepeats = 3")).remedy
    assert "once for the whole run" in only(loads("[[dataset.folders]]\npath = 'a'\nbatch_size = 3")).remedy
    assert "[model]" in only(loads("model = 3")).remedy


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model.weight_dtype", "bf61", "Did you mean bf16"),
        ("compile.shape_mode", "sttic", "Did you mean static"),
        ("compile.compile_dynamic", "maybe", "auto, true, false"),
        ("network.network_dim", True, "whole number"),
        ("network.network_dim", "1.5", "whole number"),
        ("dataset.batch_size", None, "not empty"),
        ("dataset.batch_size", 10**400, "1 to 1024"),
        ("optimizer.learning_rate", float("nan"), "finite"),
        ("optimizer.learning_rate", "fast", "a number"),
        ("optimizer.learning_rate", -1, "0 to 1000"),
        ("optimizer.betas", [0.9], "at least 2"),
        ("optimizer.betas", [0.9, 0.9, 0.9], "at most 2"),
        ("optimizer.optimizer_args", ["weight_decay=1"], "table"),
        ("optimizer.optimizer_args", {"a": {"b": 1}}, "Simplify"),
        ("optimizer.optimizer_args", {"a-b": 1}, "argument"),
        ("compile.compile", 1, "true or false"),
        ("compile.caption_buckets", [256, 64], "[64, 256]"),
        ("compile.compile_blocks", [{"blocks": "double:5-2"}], "backwards"),
        ("compile.compile_blocks", [{"blocks": "double:x"}], "double:0-3"),
        ("compile.static_token_count", 0, "leave it empty"),
        ("dataset.folders", 3, "[[dataset.folders]]"),
        ("dataset.folders", [3], "[[dataset.folders]]"),
        ("dataset.caption_extension", "txt", ".txt"),
        ("dataset.caption_extension", ".png", "pictures"),
        ("dataset.caption_extension", ".tag.JPG", "pictures"),
        ("dataset.caption_extension", ".safetensors", "weights"),
        ("network.targets_include", ["("], "regular expression"),
        ("saving.output_name", "a/b", "file name"),
        ("saving.output_name", "..", "file name"),
        ("saving.output_name", 5, "text"),
        ("model.base_model", "a\x00b", "control character"),
        ("optimizer.lr_scheduler", "cosin", "cosine"),
    ],
)
def test_a_wrong_value_is_named_and_the_form_stays_usable(path: str, value: object, words: str) -> None:
    """Shown beside the field, and everything else can still be read."""
    section, name = path.split(".")
    data = {section: {name: value}, "training": {"seed": 7}}
    loaded = parse(data)
    problem = only(loaded)
    assert problem.setting == path and words in problem.sentence(), problem.sentence()
    assert loaded.config is None and loaded.partial is not None
    assert loaded.partial.training.seed == 7
    assert data[section] == {name: value}, "what the form gave is not changed"


@pytest.mark.parametrize("empty", ["", "   "])
def test_empty_text_is_unset_or_refused(empty: str) -> None:
    """An empty folder must not become the root of the disk, or of the project."""
    for path in ("model.vae", "dataset.cache_dir", "compile.compile_cache_dir", "dataset.trigger_word"):
        section, name = path.split(".")
        cfg = parse({section: {name: empty}}).config
        assert cfg is not None and get(cfg, path) is None
    for section, name in (("saving", "output_dir"), ("saving", "output_name"), ("dataset", "caption_extension")):
        assert only(parse({section: {name: empty}})).severity == "error"
    assert only(parse({"dataset": {"folders": [{"path": empty}]}})).path == "dataset.folders[0].path"


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "no file" in only(load(tmp_path / "none.toml")).text
    assert "folder" in only(load(tmp_path)).text
    (tmp_path / "big.toml").write_bytes(b"#" * 3_000_000)
    assert "too large" in only(load(tmp_path / "big.toml")).text
    (tmp_path / "image.toml").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    assert "a PNG picture" in only(load(tmp_path / "image.toml")).text
    assert only(load("a\x00b")).severity == "error"


def test_command_line_rules_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[network]\nnetwork_dim = 'x'\n[training]\nmax_train_steps = 50\n[dataset]\nbatch_size = 4\n")
    overrides = {
        "network_dim": "32",
        "max-train-steps": "none",
        "training.max_train_epochs": "3",
        "output_name": "007",
        "base_model": r"C:\models\flux",
        "betas": "[0.8, 0.9]",
        "validation_sigmas": "0.1,0.2",
        "compile_dynamic": "TRUE",
        "folders": "pictures/cats",
        "prompts": '[{ prompt = "a", steps = 4 }, { prompt = "b" }]',
        "optimizer_args": "{ amsgrad = true }",
    }
    loaded = load(path, overrides)
    cfg = loaded.config
    assert cfg is not None, [p.sentence() for p in loaded.problems]
    assert (cfg.network.network_dim, cfg.dataset.batch_size) == (32, 4)
    assert (cfg.training.max_train_steps, cfg.training.max_train_epochs) == (None, 3)
    assert (cfg.saving.output_name, cfg.model.base_model) == ("007", r"C:\models\flux")
    assert (cfg.optimizer.betas, cfg.validation.validation_sigmas) == ([0.8, 0.9], [0.1, 0.2])
    assert cfg.compile.compile_dynamic == "true"
    assert [f.path for f in cfg.dataset.folders] == ["pictures/cats"]
    assert [(p.prompt, p.steps) for p in cfg.sampling.prompts] == [("a", 4), ("b", 28)]
    assert cfg.optimizer.optimizer_args == {"amsgrad": True}
    assert path.read_text().startswith("[network]\nnetwork_dim = 'x'"), "the person's own file is never rewritten"


def test_a_wrong_flag_has_no_line_and_the_nearest_name() -> None:
    loaded = loads("[dataset]\nbatch_size = 3\n", {"batch_size": "x", "btach_size": "2", "unet_lr": "1"})
    assert [p.line for p in loaded.problems] == [None, None, None]
    sentences = [p.sentence() for p in loaded.problems]
    assert any("--btach_size" in s and "dataset.batch_size" in s for s in sentences)
    assert any("--unet_lr" in s and "optimizer.learning_rate" in s for s in sentences)


def test_a_flag_on_a_section_that_is_none() -> None:
    assert "[dataset]" in only(loads("dataset = 3", {"batch_size": "2"})).text


def test_what_a_run_needs_besides() -> None:
    assert [p.path for p in ready(Config())] == ["model.base_model", "dataset.folders"]
    cfg = loads("[model]\nbase_model = 'a'\n[[dataset.folders]]\npath = 'b'").config
    assert cfg is not None and ready(cfg) == []


def test_sentences() -> None:
    assert Problem("a.b", 3, "must be 1", "Write 1").sentence() == "line 3, a.b: must be 1. Write 1."
    assert Problem(None, None, "No file.", "").sentence() == "No file."
    assert Problem("dataset.folders[1].path", None, "x", "y").setting == "dataset.folders"
    assert Problem("optimizer.betas[0]", None, "x", "y").setting == "optimizer.betas"
