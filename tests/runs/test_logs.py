"""The log: human lines, read from its end, and never a secret in it (case C10)."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from backend.base.redact import redact, redact_value
from backend.runs import supervise
from backend.runs.folder import Run
from backend.runs.logs import read_log, tail_log
from tests.tiny.runs import ROOT, eventually

HF = "hf_QwErTyUiOpAsDfGhJkLzXcVbNm"
WANDB = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"
SECRETS = [
    f"using token {HF}.",
    f"WANDB_API_KEY={WANDB}",
    f"wandb: appending key {WANDB} for api.wandb.ai",
    'config = {"api_key": "a1B2c3D4e5F6g7H8i9"}',
    "Authorization: Bearer abcdef0123456789ABCDEF",
    "https://me:s3cret-pass@example.org/x.git",
    "GET https://x.org/file?token=ZXY987abc&page=2",
    "ghp_0123456789abcdefghijABCDEFGHIJ",
    "sk-proj-0123456789abcdefghijkl",
    "--password=hunter2",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
]
HARMLESS = [
    "static_token_count = 4096, tokens: 4032, text tokens: 512",
    "the token budget is 128 and max_token: 1234567890123456789",
    "commit 0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "eos_token='<|endoftext|>' pad_token_id=50256",
    "transformer_blocks.0.attn.to_q.lora_A.weight loss=0.1234 lr=1.0e-04",
    "half_precision_backend sk-learn hf_hub",
    "The password is asked for at start.",
]


@pytest.mark.parametrize("line", SECRETS)
def test_secrets_are_hidden(line):
    shown = redact(line, {})
    assert "[hidden]" in shown
    for secret in (HF, WANDB, "a1B2c3D4e5F6g7H8i9", "abcdef0123456789ABCDEF", "s3cret-pass", "ZXY987abc", "hunter2"):
        assert secret not in shown
    assert redact(shown, {}) == shown


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_secret_stays(line):
    assert redact(line, {}) == line


def test_values_of_secret_variables_are_hidden_wherever_they_turn_up(tmp_path):
    environment = {
        "MY_TOKEN": "correct horse", "CIVITAI_API_KEY": "0123456789abcdef", "GUI_PASSWORD": "tr0ub4dor&3",
        "DEBUG_TOKEN": "1", "HF_TOKEN_PATH": str(tmp_path), "TOKENIZERS_PARALLELISM": "false-ish",
    }  # fmt: skip
    text = "a correct horse with 0123456789abcdef and tr0ub4dor&3, step 1, false-ish"
    assert redact(text, environment) == "a [hidden] with [hidden] and [hidden], step 1, false-ish"


LEAKY = """
import logging, os, sys, threading, warnings
from backend.runs.events import EventWriter
from backend.runs.events.kinds import WarningEvent
from backend.runs.folder import Run
from backend.runs.logsetup import configure_logging
run = Run(sys.argv[1])
run.attach()
configure_logging(run, sys.argv[2])
secret = os.environ["HF_TOKEN"]
log = logging.getLogger("leaky")
log.info("logging in with %s", secret)
log.debug("only at debug")
print("printed", secret)
sys.stdout.write("in pieces " + secret[:9]); sys.stdout.write(secret[9:] + " end\\n")
print("bar 1%\\rbar 50% " + secret, file=sys.stderr, end="\\r")
warnings.warn("warned of " + secret)
try:
    raise ValueError("caught with " + secret)
except ValueError:
    log.exception("survived")
thread = threading.Thread(target=lambda: 1 / 0, name="helper")
thread.start(); thread.join()
EventWriter(run).write(WarningEvent(text=secret, remedy=os.environ["WANDB_API_KEY"]))
run.finish("failed", error={"text": "died with " + secret})
raise RuntimeError("uncaught with " + secret)
"""


def leak(run: Run, level: str = "info") -> str:
    command = [sys.executable, "-c", LEAKY, str(run.path), level]
    supervise.start(
        None, run, command=command, environment={"HF_TOKEN": HF, "WANDB_API_KEY": WANDB, "PYTHONPATH": str(ROOT)}
    )
    eventually(lambda: "exit_code" in run.record(), "it ends")
    return run.log_path.read_text(encoding="utf-8")


def test_c10_no_planted_secret_is_in_any_file_of_a_run(run):
    text = leak(run)
    for part in ("logging in with", "printed", "in pieces", "bar 50%", "warned of", "caught with", "uncaught with"):
        assert part in text
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        content = path.read_bytes()
        assert HF.encode() not in content and WANDB.encode() not in content, path.name
    assert HF not in run.status().text + str(run.status().to_dict())


def test_lines_are_human_and_written_once(run):
    text = leak(run)
    assert text.count("logging in with") == 1 and "only at debug" not in text
    assert " INFO leaky: logging in with [hidden]" in text
    assert text.count("RuntimeError: uncaught with [hidden]") == 1
    assert "CRITICAL backend.runs.logsetup: The trainer stopped with an error." in text
    assert "The thread helper stopped." in text and "ZeroDivisionError" in text
    assert "only at debug" in leak(Run.create_empty(run.path.parent, "debug"), "debug")


def test_started_by_hand_the_terminal_sees_the_log_too(run):
    code = textwrap.dedent("""
        import logging, sys
        from backend.runs.folder import Run
        from backend.runs.logsetup import configure_logging
        run = Run(sys.argv[1])
        configure_logging(run)
        logging.getLogger("x").info("hello")
        try: configure_logging(run, "loud")
        except ValueError as error: print(error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("INFO x: hello") == 1
    assert run.log_path.read_text().count("INFO x: hello") == 1
    assert "log_level 'loud' is not known" in done.stdout


def test_a_hard_crash_leaves_its_place_in_the_log(run):
    code = (
        "import ctypes, sys\nfrom backend.runs.folder import Run\n"
        "from backend.runs.logsetup import configure_logging\n"
        "run = Run(sys.argv[1]); run.attach(); configure_logging(run); ctypes.string_at(0)"
    )
    supervise.start(
        None, run, command=[sys.executable, "-c", code, str(run.path)], environment={"PYTHONPATH": str(ROOT)}
    )
    eventually(lambda: "state" in run.record(), "it crashes")
    status = run.status()
    assert status.state == "failed" and status.error.exception == "Fatal Python error: Segmentation fault"
    assert "crashed" in status.error.text


def test_a_log_is_followed_line_by_line(tmp_path):
    path = tmp_path / "log.txt"
    assert read_log(path) == ("", 0) and tail_log(path) == ""
    path.write_bytes("eins\nzwei ü".encode()[:-1])  # cut inside a letter
    text, offset = read_log(path)
    assert text == "eins\n"
    path.write_bytes("eins\nzwei ü\ndrei".encode())
    text, offset = read_log(path, offset)
    assert text == "zwei ü\n"
    assert read_log(path, offset) == ("", offset)
    path.write_bytes(b"new\n")  # replaced
    assert read_log(path, offset) == ("new\n", 4)


def test_of_a_long_rest_only_the_newest_whole_lines(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    text, offset = read_log(path, 0, max_bytes=1000)
    lines = text.splitlines()
    assert lines[-1] == "line 9999" and lines[0] == f"line {10_000 - len(lines)}" and offset == path.stat().st_size
    assert tail_log(path, 3) == "line 9997\nline 9998\nline 9999\n"
    assert tail_log(path, 3, since=offset) == ""


def test_a_progress_bar_shows_what_was_drawn_last(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"a\r\nb 1%\rb 50%\rb 100%\nc 1%\rc 2%")
    assert tail_log(path) == "a\nb 100%\nc 2%"
    path.write_text(f"key {HF}\n")
    assert HF not in tail_log(path) and HF not in read_log(path)[0]


@pytest.mark.parametrize(
    "piece",
    [
        "--a-",
        "A_",
        "A",
        "basic ",
        "--password ",
        "a_",
        "a",
        "ey-",
        "eyJ",
        "://a:",
        "token ",
        "wandb ",
        "?key=",
        "password ",
        "sk-",
    ],
)
def test_no_line_is_too_long_to_be_looked_through(piece):
    """A pattern that looks at each letter from each letter would need minutes here (no limit but the suite's own)."""
    for _ in range(4):
        assert redact(piece * 100_000, {})


@pytest.mark.parametrize("max_bytes", [4096, 65536])
def test_a_progress_bar_longer_than_what_is_read_at_once_is_shown(tmp_path, max_bytes):
    """It draws over one line for hours: half a megabyte without a line's end."""
    path, shown, offset = tmp_path / "log.txt", "", 0
    path.write_text("before\n")
    for percent in range(100):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write((f"\r{percent:3d} %|" + "█" * 300) * 10)
        text, offset = read_log(path, offset, max_bytes)
        shown += text
    assert any(f"{percent} %|" in shown for percent in range(88, 100)) and offset > 800_000
    with open(path, "a") as stream:
        stream.write("\rall done\nafter\n")
    while (read := read_log(path, offset, max_bytes))[1] != offset:
        text, offset = read
        shown += text
    assert shown.endswith("all done\nafter\n") and offset == path.stat().st_size


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("python -m gui --password zebra", "zebra"),
        ("python -m gui --password=zebra --port 1", "zebra"),
        ("curl --proxy-password 'zebra'", "zebra"),
        ("tool --hf-token abcdefghij", "abcdefghij"),
        ("PGPASS=word psql", "word"),
        ("export PGPASSWORD=word", "word"),
        ("MYSQL_PWD=word", "word"),
        ("RSYNC_PASSPHRASE='word'", "word"),
        ("Authorization: Basic dXM6cGE=", "dXM6cGE="),
        ("authorization: basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("sent header Basic OnB3", "OnB3"),
    ],
)
def test_secrets_are_known_by_what_stands_before_them(text, secret):
    assert secret not in redact(text, {}) and "[hidden]" in redact(text, {})
    assert secret not in str(redact_value([text])) and "[hidden]" in str(redact_value([text]))


def test_the_word_after_a_flag_is_hidden_in_a_command_line_too():
    command = ["python", "-m", "gui", "--password", "zebra", "--hf_token", "fox", "--port", "1"]
    assert redact_value(command) == [
        "python",
        "-m",
        "gui",
        "--password",
        "[hidden]",
        "--hf_token",
        "[hidden]",
        "--port",
        "1",
    ]


@pytest.mark.parametrize(
    "text",
    ["PWD=/home/fox", "--max_token_length 225", "a basic training run", "pass=1 of 2", "--password --port 7860",
     "tokens: 4032", "--caption_tag_dropout_rate 0.1", "basic abcd"],
)  # fmt: skip
def test_ordinary_words_stay(text):
    assert redact(text, {}) == text
    assert redact_value(text.split()) == text.split()


def test_short_names_of_secrets_in_the_environment():
    environment = {"PGPASS": "long-enough-1", "MYSQL_PWD": "long-enough-2", "PWD": "/no/such/folder-3"}
    text = redact(" ".join(environment.values()), environment)
    assert text == "[hidden] [hidden] /no/such/folder-3"
