"""Other web sites, other machines and crafted names get nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from backend.base.paths import is_on_network
from gui import draft, form
from gui import run_store as store_module
from gui.app import Home, make_app
from gui.password import Brake, Password, address_of, password_fault
from gui.security import BodyLimit
from tests.gui.conftest import ADDRESS, Page, make_run

POSTS = ("/control", "/resume", "/delete", "/restore", "/scan", "/scan/stop", "/doctor", "/gradio_api/queue/join")
READS = ("/", "/runs", "/live?run=x", "/fs?prefix=/", "/config", "/gradio_api/info", "/page/js/main.js")


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7860", "192.168.1.5", ""]
)
def test_a_foreign_host_header_is_refused(page: Page, path: str, host: str) -> None:
    """DNS rebinding: a site points its own name at 127.0.0.1."""
    assert page.client.get(path, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860", "127.0.0.2"])
def test_this_machine_is_answered(page: Page, host: str) -> None:
    assert page.client.get("/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1.evil.example:7860"]
)
def test_a_post_from_another_site_is_refused(page: Page, path: str, origin: str) -> None:
    answer = page.client.post(path, json={}, headers={"origin": origin})
    assert answer.status_code == 403


@pytest.mark.parametrize("path", POSTS)
def test_a_post_that_the_browser_calls_foreign_is_refused(page: Page, path: str) -> None:
    assert page.client.post(path, content="x", headers={"sec-fetch-site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("path", READS[1:])
def test_reads_embedded_in_another_site_are_refused(page: Page, path: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert page.client.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_of_another_site_opens_the_page_and_nothing_else(page: Page, site: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert page.client.get("/", headers=headers).status_code == 200
    for path in (*READS[1:], "/fs?prefix=//host/share", "/cache/export", "/log?run=x", "/gradio_api/file=x"):
        assert page.client.get(path, headers=headers).status_code == 403, path
    # Typed into the address bar, or opened from our own page.
    assert page.client.get("/runs", headers={"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}).status_code == 200


def test_our_own_posts_and_scripts_pass(page: Page) -> None:
    own = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
    assert page.client.post("/scan/stop", headers=own).status_code == 200
    assert page.client.post("/scan/stop").status_code == 200


@pytest.mark.parametrize("path", READS)
def test_every_answer_is_hardened(page: Page, path: str) -> None:
    headers = page.client.get(path, headers={"origin": ADDRESS}).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert (
        "default-src 'self'" in headers["content-security-policy"]
        or "default-src 'none'" in headers["content-security-policy"]
    )
    assert "access-control-allow-origin" not in headers


CLIMBING = (
    "../config.toml",
    "../../secret.png",
    "..%2f..%2fsecret.png",
    "....//secret.png",
    "/etc/passwd",
    "samples/../../secret.png",
    "..\\..\\secret.png",
    "link.png",
    ".hidden.png",
    "notes.html",
    "picture.svg",
    "folder.png",
    "",
    "step_000030_0.png\x00.html",
)


@pytest.mark.parametrize("name", CLIMBING)
def test_pictures_never_leave_their_folder(page: Page, name: str) -> None:
    run = make_run(page.runs)
    (page.runs / "secret.png").write_bytes(b"secret")
    (page.runs / "notes.html").write_text("<script>")
    for plain in (".hidden.png", "notes.html", "picture.svg"):
        (run.samples_dir / plain).write_text("x")
    (run.samples_dir / "folder.png").mkdir()
    if os.name == "posix":
        (run.samples_dir / "link.png").symlink_to(page.runs / "secret.png")
    assert page.client.get("/image", params={"run": run.name, "file": name}).status_code in (404, 422)
    assert page.client.get("/download", params={"run": run.name, "file": name}).status_code in (404, 422)


@pytest.mark.parametrize("name", ["..", ".", "../data", "", "/", "fox-nothing", "%2e%2e"])
def test_a_run_is_a_name_and_never_a_path(page: Page, name: str) -> None:
    make_run(page.runs)
    assert page.client.get("/live", params={"run": name}).json() == {"missing": True}
    assert page.client.get("/log", params={"run": name}).status_code == 404
    assert page.client.get("/image", params={"run": name, "file": "a.png"}).status_code == 404
    assert page.client.post("/delete", json={"run": name}).status_code == 404
    assert page.client.post("/control", json={"run": name, "what": "stop"}).status_code == 404


def test_a_picture_is_served_as_what_it_is(page: Page) -> None:
    run = make_run(page.runs)
    answer = page.client.get("/image", params={"run": run.name, "file": "step_000030_0.png"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    answer = page.client.get("/download", params={"run": run.name, "file": "fox.safetensors"})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_the_folder_list_shows_names_only(page: Page, tmp_path: Path) -> None:
    base = tmp_path / "disk"
    for name in ("models", "more models", ".ssh"):
        (base / name).mkdir(parents=True)
    for name in ("ae.sft", "lora.safetensors", "secret.txt", ".env", "key.pem"):
        (base / name).write_text("content")

    def names(prefix: str, **more: str) -> list[str]:
        answer = page.client.get("/fs", params={"prefix": prefix, **more})
        assert answer.status_code == 200
        return [entry["name"] for entry in answer.json()["entries"]]

    assert names(f"{base}/") == ["ae.sft", "lora.safetensors", "models", "more models"]
    assert names(f"{base}/", kind="folder") == ["models", "more models"]
    assert names(f"{base}/MO") == ["models", "more models"]
    assert names(f"{base}/.s") == []
    assert names(f"{base}/secret") == []
    assert names(f"{base}/secret.txt/") == []
    assert names("/nowhere/at/all/") == []
    assert names("\x00") == []


def test_gradio_serves_no_file_of_the_project(page: Page) -> None:
    from backend.base.paths import PROJECT_ROOT

    for path in (PROJECT_ROOT / "pyproject.toml", PROJECT_ROOT / "gui" / "app.py", Path("/etc/passwd")):
        assert page.client.get(f"/gradio_api/file={path}").status_code in (403, 404)


def test_bodies_are_bounded_and_gradio_takes_no_uploads(page: Page) -> None:
    assert page.client.post("/gradio_api/upload", files={"files": b"x"}).status_code == 403
    vast = b"x" * (BodyLimit.LARGEST_BYTES + 1)
    assert page.client.post("/delete", content=vast).status_code == 413
    # without a length: read no further than the limit
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4 * BodyLimit.LARGEST_BYTES:
            sent += 1_000_000
            yield b"x" * 1_000_000

    assert page.client.post("/gradio_api/queue/join", content=endless()).status_code >= 400


def test_a_folder_of_another_machine_is_opened_only_where_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = "\\\\host\\share"
    assert not is_on_network("/home/me", True) and not is_on_network("C:\\x", True)
    assert is_on_network(share, True) and is_on_network("//host/share", True) and not is_on_network(share, False)
    for module in (draft, store_module):
        monkeypatch.setattr(module, "is_on_network", lambda path: is_on_network(path, True))
    monkeypatch.setattr(os, "scandir", lambda folder: pytest.fail(f"opened {folder}"))
    assert store_module.list_paths(share, "any", typed=False) == []
    monkeypatch.undo()
    monkeypatch.setattr(draft, "is_on_network", lambda path: is_on_network(path, True))
    mine = draft.Draft(tmp_path)
    loaded = form.defaults() | {"model.base_model": share}
    mine.load(loaded, "a preset")
    assert mine.untyped() == [share]
    mine.shown("tab")
    mine.keep(loaded | {"model.base_model": ""}, "tab")
    mine.keep(loaded, "tab")
    assert mine.untyped() == [] and draft.Draft(tmp_path).untyped() == []


def basic(password: str, user: str = "me") -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_a_page_for_others_needs_its_password(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="password"):
        make_app(Home.at(tmp_path), remote=True)
    client = TestClient(
        make_app(Home.at(tmp_path), remote=True, password="größer als 8"), base_url="http://192.168.1.5:7860"
    )
    for path in (*READS, "/gradio_api/startup-events"):
        for wrong in (
            {},
            basic("wrong"),
            basic(""),
            {"authorization": "Basic ???"},
            {"authorization": "Bearer größer als 8".encode()},
        ):
            assert client.get(path, headers=wrong).status_code == 401, path
    assert client.get("/runs", headers=basic("größer als 8")).status_code == 200
    assert (
        client.post("/scan/stop", headers=basic("größer als 8") | {"origin": "https://evil.example"}).status_code == 403
    )
    assert client.get("/runs", headers=basic("größer als 8") | {"host": "evil.example"}).status_code == 400


def test_guessing_is_slowed_down_per_address() -> None:
    now = [0.0]
    brake = Brake(lambda: now[0])
    for number in range(Brake.FREE - 1):
        brake.failed("a", b"guess %d" % number)
        assert brake.wait_s("a") == 0
    for delay in (1, 2, 4, 8):
        brake.failed("a", b"wrong %d" % delay)
        assert brake.wait_s("a") == delay and brake.wait_s("b") == 0
        now[0] += delay
    # The same wrong password again, as of a browser tab that polls, is no further guess.
    brake.failed("a", b"wrong 8")
    assert brake.wait_s("a") == 0
    for number in range(100):
        brake.failed("a", b"more %d" % number)
    assert brake.wait_s("a") == Brake.LONGEST_S
    brake.passed("a")
    assert brake.wait_s("a") == 0


def test_addresses_of_one_machine_count_as_one() -> None:
    def of(address: str) -> str:
        return address_of({"client": (address, 1)})

    assert of("2001:db8::1") == of("2001:db8::ffff:1") != of("2001:db8:0:1::1")
    assert of("::ffff:10.0.0.1") == of("10.0.0.1") != of("10.0.0.2")
    assert address_of({}) == "unknown"


def test_a_thousand_guesses_get_no_answer() -> None:
    # at one moment, however long the requests take
    client = TestClient(Password(PlainTextResponse("the page"), password="right horse", brake=Brake(lambda: 0.0)))
    assert client.get("/runs", headers=basic("right horse")).text == "the page"
    answers = [client.get("/runs", headers=basic(f"guess {n}")).status_code for n in range(50)]
    assert answers[: Brake.FREE] == [401] * Brake.FREE and set(answers[Brake.FREE :]) == {429}
    # Not even the right one is told from a wrong one meanwhile.
    answer = client.get("/runs", headers=basic("right horse"))
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1 and "Try again" in answer.text


def test_short_and_uniform_passwords_are_refused(tmp_path: Path) -> None:
    assert password_fault("x") and password_fault("1234567") and password_fault("aaaaaaaaaaaa")
    assert password_fault("monotile") == ""
    with pytest.raises(ValueError, match="at least 8"):
        make_app(Home.at(tmp_path), remote=True, password="x")


def test_below_a_sub_path_every_address_is_found(tmp_path: Path) -> None:
    client = TestClient(
        make_app(Home.at(tmp_path), root_path="https://example.org/tools/monotile/"), base_url="http://example.org"
    )
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    # The proxy asks under its own name for us, and tells the one that the browser sees.
    own = {"origin": "https://example.org", "host": "127.0.0.1:7860", "x-forwarded-host": "example.org"}
    other = own | {"origin": "https://evil.example", "x-forwarded-host": "evil.example"}
    for prefix in ("", "/tools/monotile"):  # taken off by the proxy in front, or passed on
        page = client.get(f"{prefix}/").text
        for address in ("/tools/monotile/page/js/main.js", "/tools/monotile/page/css/bar.css"):
            assert address in page
        assert '"root":"https://example.org/tools/monotile"' in page
        for path in ("/runs", "/page/js/main.js", "/page/css/bar.css", "/page/logo.svg", "/config"):
            assert client.get(prefix + path).status_code == 200, path
        assert client.get(f"{prefix}/", headers=foreign).status_code == 200
        assert client.get(f"{prefix}/runs", headers=foreign).status_code == 403
        assert client.post(f"{prefix}/scan/stop", headers=own).status_code == 200
        assert client.post(f"{prefix}/scan/stop", headers=other).status_code == 403


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/upload/", "/upload"])
def test_gradios_uploads_are_closed(page: Page, path: str) -> None:
    """They are bounded in size, but not in number; no field of the page needs them."""
    answer = page.client.post(path, files={"files": ("a.txt", b"x")}, headers={"origin": ADDRESS})
    assert answer.status_code == 403 and "takes no file uploads" in answer.text
