"""The page's translations: nothing missing, nothing left over, the language of a request, and a translated form."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from backend.base.paths import PROJECT_ROOT
from backend.runs.diagnose_rules import RULES
from backend.runs.exit_codes import EXIT_CODES
from backend.runs.remedy_filter import shortened
from gui import fields, imports
from gui.locale import catalogue, texts
from gui.locale.check import COMMAND, faults, updated
from gui.locale.script_texts import texts_of
from tests.gui.conftest import Page
from tests.tiny.page_words import as_shown, left_in_english, needs_node

ACCEPTED = {
    "de": "de",
    "de-AT,de;q=0.9,en;q=0.8": "de",
    "zh-TW,zh;q=0.9": "zh-CN",
    "fr-FR,fr;q=0.9,de;q=0.5": "de",
    "en-US,en;q=0.9,de;q=0.8": "en",
    "de;q=0, zh;q=abc": "en",
    "": "en",
}


@pytest.fixture(scope="module")
def every() -> tuple[dict[str, str], dict[str, str]]:
    return texts.all_texts(), texts.all_counts()


def test_every_text_is_translated_and_none_is_left_over(every: tuple[dict[str, str], dict[str, str]]) -> None:
    assert len(every[0]) > 1800 and len(every[1]) > 10 and len(catalogue.files()) >= 2
    lines = [line for path in catalogue.files() for line in faults(catalogue.read(path), *every)]
    remedy = f"{len(lines)} to do; missing ones show English. Add them with  {COMMAND}  and fill them in:"
    assert not lines, "\n".join(["", remedy, *lines[:200]])


def test_faults_are_told_and_entries_follow_the_texts(every: tuple[dict[str, str], dict[str, str]]) -> None:
    page = {"Save {1}": "a.js:1", "Loss": "b.js:2"}
    old = catalogue.Catalogue("xx", "X", texts={"Save {1}": "{2}!", "Lost": "V"}, counts={"run": {"one": "{n} L"}})
    sentences = "\n".join(faults(old, page, {"image": "c.js:3"}))
    for words in ("lacks 'Loss' (b.js:2)", "'Lost', which is nowhere", "different values", "noun 'image'", "'run'"):
        assert words in sentences
    fresh, lines = updated(old, page, {"image": "c.js:3"})
    assert fresh.texts == {"Save {1}": "{2}!", "Loss": ""} and fresh.counts == {"image": {"one": ""}}
    assert "+ Loss" in lines and "    before: V" in lines and "- Lost" in lines


def test_what_people_see_in_a_script_is_found() -> None:
    script = """
    import { el } from "./dom.js"; // Not this one.
    const WORDS = { done: "finished" };
    el("p", { class: "note wide", title: "Read this" }, "A long " + "text.", ok ? "yes" : "no");
    setText(node, t`Step ${a ? "or so" : 1}`);
    if (x === "Not this") fill(node.querySelector(".a b"), formatCount(n, "file"));
    """
    seen = [(each.text, each.count) for each in texts_of(script)]
    assert seen == [
        ("finished", False),
        ("Read this", False),
        ("A long text.", False),
        ("yes", False),
        ("no", False),
        ("or so", False),
        ("Step {1}", False),
        ("file", True),
    ]


@needs_node
def test_a_text_with_values_translates_its_own_sentence_and_no_other() -> None:
    texts = {
        "All {1}": "Alle {1}",
        "fits in {1}, where others need {2}": "passt in {1}, wo andere {2} brauchen",
        "Fix: {1}": "Abhilfe: {1}",
        "close other programs": "andere Programme schließen",
    }
    shown = {
        "All 12": "Alle 12",
        "All other settings are those of the run.": "All other settings are those of the run.",
        "Fits in 1 GB, where others need 2. exact_buckets needs 3.": "Passt in 1 GB, wo andere 2 brauchen. "
        "exact_buckets needs 3.",
        "Fix: close other programs. Then start.": "Abhilfe: andere Programme schließen. Then start.",
    }
    assert as_shown(texts, list(shown)) == shown


FAILED = {
    "The GPU ran out of memory while training (step 3: 2 pictures of 512 x 512 px). 1.5 GB more were needed, and 0.4 "
    "GB of 23.6 GB were free. The LoRA of step 2 is kept in checkpoints/a.safetensors.": "Der Speicher der GPU reichte "
    "nicht (Training; Schritt 3: 2 Bilder mit 512 x 512 px). 1.5 GB mehr waren nötig, und 0.4 GB von 23.6 GB waren "
    "frei. Die Datei (LoRA) von Schritt 2 ist aufgehoben in checkpoints/a.safetensors.",
    "Set compile.cuda_graphs to off: recorded passes keep 0.5 GB. In order of least cost: (1) let the VAE work in "
    "tiles (memory.vae_tiling = on): saves about 0.9 GB and costs nothing that can be seen; (2) turn on gradient "
    "checkpointing (training.gradient_checkpointing = true): saves about 5.1 GB and costs about a third more time a "
    "step.": "compile.cuda_graphs auf off setzen: aufgezeichnete Durchläufe behalten 0.5 GB. Nach den geringsten "
    "Kosten geordnet: (1) die VAE in Kacheln arbeiten lassen (memory.vae_tiling = on): spart etwa 0.9 GB und kostet "
    "nichts Sichtbares; (2) "
    "Gradient Checkpointing einschalten (training.gradient_checkpointing = true): spart etwa 5.1 GB und kostet etwa "
    "ein Drittel mehr Zeit pro Schritt.",
    "The trainer ended with exit code 3. Its last line was: Bus error": "Der Trainer endete mit Exit-Code 3. Seine "
    "letzte Zeile war: Bus error",
    "The loss became nan at step 3. Training was stopped. No LoRA was saved before it.": "Loss wurde in Schritt 3 zu "
    "nan. Das Training wurde gestoppt. Davor wurde keine Datei (LoRA) gespeichert.",
}


@needs_node
def test_why_a_run_failed_is_told_in_the_pages_language() -> None:
    """Every cause and remedy that a run can end with, with values in their places."""
    known = []
    for rule in RULES:
        values = dict.fromkeys(rule.pattern.groupindex, "7.5 GiB")
        known += [rule.text.format(**values), rule.cause, rule.remedy, *shortened(rule.remedy)]
    known += [text for entry in EXIT_CODES.values() for text in entry[1:]]
    chinese = as_shown(catalogue.catalogues()["zh-CN"].texts, known)
    commands = "sudo apt install|Visual Studio Build|Visual C"
    english = [text for text in chinese.values() if re.search("[A-Za-z]+ [a-z]+ [a-z]+", re.sub(commands, "", text))]
    assert english == [] and len(chinese) > 150
    assert as_shown(catalogue.catalogues()["de"].texts, list(FAILED)) == FAILED


FOREIGN = PROJECT_ROOT / "tests" / "config" / "foreign"
IMPORTED_FILES = {
    "ai_toolkit.yaml": "",
    "dataset.toml": "",
    "diffusion_pipe.toml": "diffusion_pipe_dataset.toml",
    "easy_training.toml": "",
    "flux.toml": "dataset.toml",
    "musubi.sh": "",
    "musubi.toml": "musubi_dataset.toml",
    "musubi_dataset.toml": "",
    "onetrainer.json": "",
    "sd_scripts.bat": "",
    "sdxl.json": "",
    "simpletuner.json": "simpletuner_dataset.json",
}
# Settings whose notes and errors are put together from parts, and files that can't be read.
IMPORTED_TEXTS = (
    b'[a]\nnetwork_module = "networks.lora_flux"\ntrain_batch_size = -1\ntimestep_sampling = "sigma"\nvae = 3\n'
    b'weighting_scheme = "mode"\ndiscrete_flow_shift = 3.0\nresolution = "1024,768"\noptimizer_type = "Ranger"\n'
    b'mixed_precision = "fp4"\nsample_prompts = "a.txt"\nnetwork_args = ["rank_dropout=true", "words"]\n'
    b'max_grad_norm = "much"\nlr_scheduler = "inverse_sqrt"\nlr_scheduler_type = "Warm"\nmax_train_steps = 0.5\n'
    b'gradient_checkpointing = "perhaps"\nloss_type = "l3"\nclip_l = ["a", "b"]\nbucket_reso_steps = 40\n',
    b'[a]\nnetwork_module = "networks.lora_qwen_image"\ntimestep_sampling = "qinglong_qwen"\ndit = "a"\nsdpa = true\n',
    b'network_module = "networks.oft"\noptimizer_args = ["betas=1", "decouple=2"]\ntrain_data_dir = "a"\nae = "a"\n',
    b'pretrained_model_name_or_path = "a"\nfused_backward_pass = true\nlearning_rate_te1 = 1e-5\nae = "a"\nt5xxl = "b"',
    b'{"LoRA_type": "LyCORIS/Diag-OFT", "network_dim": 4, "optimizer": "Adafactor", "optimizer_args": "x", "t5xxl": 1,'
    b' "additional_parameters": "--masked_loss --max_token_length 75", "max_resolution": "512,512"}',
    b'{"model_type": "PIXART_ALPHA", "training_method": "LORA", "concept_file_name": "a", "optimizer_defaults": {}}',
    b"job: extension\nconfig:\n  name: x\n  process:\n  - type: sd_trainer\n    network: {type: glora, linear: 4}\n"
    b"    model: {arch: wan22_14b, quantize: true, qtype: fp1}\n    train: {optimizer: automagic, timestep_type: x}\n"
    b"    datasets: [{folder_path: a, resolution: [large]}, {resolution: 512}]\n",
    b'[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = "a"\nflip_aug = true\n[[datasets.subsets]]\n'
    b'image_dir = "b"\nkeep_tokens = 1\n[[datasets.subsets]]\nnum_repeats = 2\n',
    b'{"LoRA_type": ',
    b"job: [\n",
    b"accelerate launch train_network.py --network_dim 'a\n",
    b"just words",
    b'{"a": 1}',
    b"network_dim = 1\nlearning_rate =\n",
    b"",
)
IMPORTED = {
    "in the other program 0 means an alpha equal to the rank": "im anderen Programm bedeutet 0 ein Alpha gleich dem "
    "Rank",
    "not in the file: float is what sd-scripts uses": "nicht in der Datei: sd-scripts benutzt float",
    "it names no image folder (image_dir, image_directory)": "es nennt keinen Bildordner (image_dir, image_directory)",
    'must be true or false, not "perhaps". Write gradient_checkpointing = true': "muss true oder false sein, nicht "
    '"perhaps". gradient_checkpointing = true schreiben',
}


@needs_node
def test_what_an_import_says_is_told_in_the_pages_language() -> None:
    """Real files of every program, as the page reads them; what their parsers say stays English."""
    sent = [(FOREIGN / name, FOREIGN / dataset if dataset else None) for name, dataset in IMPORTED_FILES.items()]
    read = [imports.read("x", file.read_bytes(), data.read_bytes() if data else None) for file, data in sent]
    assert all(each.loaded.config is not None for each in read)
    read += [imports.read("x", content) for content in IMPORTED_TEXTS]
    parts: list[str] = []
    for each in read:
        facts = each.facts()
        notes = [note for group in facts["groups"] for note in group["notes"]]
        parts += [facts["kind"], facts["rest"], *(group["title"] for group in facts["groups"])]
        parts += [text for note in notes for text in (note["about"], note["why"])]
        parts += [text for problem in each.loaded.problems for text in (problem.text, problem.remedy)]
    sentences = list(dict.fromkeys(filter(None, parts)))
    parsers = "this is not valid|this command can't be read|this is not TOML"
    assert left_in_english([text for text in sentences if not re.match(parsers, text)]) == []
    assert len(sentences) > 170 and any(re.match(parsers, text) for text in sentences)
    assert as_shown(catalogue.catalogues()["de"].texts, list(IMPORTED)) == IMPORTED and IMPORTED.keys() <= {*sentences}


def test_what_only_matches_other_texts_is_no_sentence(every: tuple[dict[str, str], dict[str, str]]) -> None:
    patterns = {rule.pattern.pattern for rule in RULES} | {rule.kind for rule in RULES}
    assert len(patterns) > 80 and not patterns & {*every[0]}
    assert not [text for text in every[0] if "above exception" in text or "out of memory.*" in text]


@pytest.mark.parametrize(("accepted", "language"), ACCEPTED.items())
def test_the_browsers_first_language_that_there_is(accepted: str, language: str) -> None:
    assert catalogue.best_language(accepted, ["en", "de", "zh-CN"]) == language


def test_the_form_is_drawn_in_the_language_of_the_request(page: Page) -> None:
    def form(**headers: str) -> tuple[str, dict]:
        answer = page.client.get("/", headers={"accept-language": "de", **headers})
        config = re.search(r"window\.gradio_config = (\{.*?\});</script>", answer.text, re.DOTALL)
        assert answer.headers["content-language"] in unescape(answer.text[:40]) and config
        return answer.headers["content-language"], json.loads(config[1])

    def label(config: dict, path: str) -> dict:
        return next(c["props"] for c in config["components"] if c["props"].get("elem_id") == fields.elem_id(path))

    language, german = form()
    chosen_language, english = form(cookie="monotile-language=en; other=1")
    assert (language, chosen_language) == ("de", "en")
    assert form(cookie="monotile-language=../../etc")[0] == "de"
    assert label(german, "optimizer.learning_rate")["label"] == "Lernrate"
    assert label(english, "optimizer.learning_rate")["label"] == "Learning rate"
    # values, and choices that are called as in TOML, are the same in every language
    for path in ("optimizer.lr_scheduler", "timesteps.weighting_scheme", "compile.compile_scope"):
        assert [v for _, v in label(german, path)["choices"]] == [v for _, v in label(english, path)["choices"]]
        assert label(german, path)["value"] == label(english, path)["value"]
    assert ["none", "none"] in label(german, "timesteps.weighting_scheme")["choices"]
    assert ["jeder Block", "each block"] in label(german, "compile.compile_scope")["choices"]
