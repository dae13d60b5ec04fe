"""Downloads, against a server on this machine that fails in the ways servers and proxies do."""
import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import glue_data
import pytest
from glue_data import DownloadError, UserError, fetch, fetch_task, load_task

CONTENT = bytes(range(1, 256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PAGE = b"\n <!DOCTYPE html><html><body>Please log in</body></html>"


class Handler(BaseHTTPRequestHandler):
    """Answers with the content that self.server.files has for the path, unless it is named here."""

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path == "/silent":
            time.sleep(2)
        elif self.path == "/endless":
            self.answer(CONTENT, announced=10 ** 9)
            time.sleep(30)
        elif self.path == "/truncated":
            self.answer(CONTENT[:1000], announced=len(CONTENT))
        elif self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/file")
            self.end_headers()
        elif self.path in self.server.files:
            self.answer(self.server.files[self.path])
        else:
            self.send_error(404)

    def answer(self, content: bytes, announced: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(announced or len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments) -> None:  # clients that hang up are part of the tests
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("urllib.request._opener", None)  # it keeps the proxies of the first request
    server = Server(("127.0.0.1", 0), Handler)
    server.files = {
        "/file": CONTENT, "/empty": b"", "/page": PAGE}
    server.requests = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_is_a_whole_checked_file_or_nothing(server, tmp_path):
    """The definition: what is whole gets its name, what is not leaves no trace and one sentence."""
    destination = tmp_path / "new" / "folder" / "file"
    with pytest.raises(DownloadError):
        fetch(server.url + "/truncated", destination, SHA256)
    assert os.listdir(tmp_path) == []

    assert fetch(server.url + "/file", destination, SHA256) == destination
    assert destination.read_bytes() == CONTENT
    assert os.listdir(destination.parent) == ["file"] and os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("path, name, sha256, reason", [
    ("/file", "file", "0" * 64, "its sha256 is not 000"),
    ("/page", "file", None, "web page"),
    ("/page", "file", SHA256, "web page"),
    ("/empty", "file", None, "nothing"),
    ("/truncated", "file", None, "1000 bytes read, 254000 more expected"),
    ("/not/there", "file", None, "404"),
    ("/silent", "file", None, "timed out"),
    ("/file", "n" * 300, None, "too long"),
])
def test_what_is_refused(server, tmp_path, monkeypatch, path, name, sha256, reason):
    monkeypatch.setattr(glue_data, "SILENCE", 0.5)
    with pytest.raises(DownloadError) as caught:
        fetch(server.url + path, tmp_path / name, sha256)
    text = str(caught.value)
    assert reason in text and server.url + path in text and name in text
    assert "check the network" in text and text.isprintable()
    assert os.listdir(tmp_path) == []


def test_unreachable_addresses_and_no_place_to_write(server, tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    for url in ("http://127.0.0.1:1/refused", "nonsense", "http://[bad", server.url + "/file"):
        with pytest.raises(DownloadError, match="cannot be downloaded"):
            fetch(url, tmp_path / "file" / "inner")
    assert os.listdir(tmp_path) == ["file"]


def test_redirects_are_followed(server, tmp_path):
    assert fetch(server.url + "/redirect", tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("offline", ["1", "ON", "yes", "True"])
def test_offline_asks_no_server(server, tmp_path, monkeypatch, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setenv("TYPHOON_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        fetch(server.url + "/file", tmp_path / "new" / "file")
    with pytest.raises(DownloadError):  # which train.py tells from other errors
        fetch_task("cola")
    assert server.requests == [] and os.listdir(tmp_path) == []
    (tmp_path / "there").write_text("mine")
    assert fetch(server.url + "/file", tmp_path / "there").read_text() == "mine"


def test_what_is_there_is_left_alone(server, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert fetch(server.url + "/file", tmp_path / "file", SHA256).read_text() == "mine"
    assert server.requests == []


def test_proxy_variables_are_honoured(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    server.files["http://elsewhere.invalid/file"] = CONTENT
    fetch("http://elsewhere.invalid/file", tmp_path / "file", SHA256)
    assert server.requests == ["http://elsewhere.invalid/file"]


def test_a_killed_process_leaves_nothing_under_the_name(server, tmp_path, root):
    code = "import sys, glue_data; glue_data.fetch(*sys.argv[1:])"
    arguments = [server.url + "/endless", str(tmp_path / "file")]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=root)
    deadline = time.monotonic() + 60
    while not server.requests and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert server.requests and not os.listdir(tmp_path)
    assert fetch(server.url + "/file", tmp_path / "file", SHA256).read_bytes() == CONTENT


# ---- GLUE ----------------------------------------------------------------------------------------

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
PAIRS = ["1\t10\t20\tOne.\tTwo.\n", "0\t11\t21\tThree.\tFour.\n", "1\t20\t10\tFive.\tSix.\n"]
COLA = "gj04\t1\t\tThe wind blew.\n"


def archive(path: Path, members: dict[str, str]) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return path.read_bytes()


@pytest.fixture
def glue(server, tmp_path, monkeypatch):
    """GLUE's files on the server, small ones of our own; their checksums in place of the real."""
    members = {"CoLA/train.tsv": COLA, "CoLA/dev.tsv": COLA + COLA, "CoLA/test.tsv": "x",
               "train.tsv": "x", "../dev.tsv": "x"}
    pairs = "\ufeff" + HEADER + "".join(PAIRS)
    files = {
        "msr_paraphrase_train.txt": pairs.replace("\n", "\r\n").encode(),
        "mrpc_dev_ids.tsv": b"10\t20\n",
        "CoLA.zip": archive(tmp_path / "CoLA.zip", members),
    }
    downloads = {}
    for task, addresses in glue_data.DOWNLOADS.items():
        downloads[task] = {}
        for address in addresses:
            content = files[Path(address).name]
            server.files["/" + address] = content
            downloads[task][address] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(glue_data, "HOST", server.url + "/")
    monkeypatch.setattr(glue_data, "DOWNLOADS", downloads)
    monkeypatch.setenv("TYPHOON_CACHE", str(tmp_path / "cache"))
    return server


def test_mrpc_becomes_train_and_dev_when_it_is_fetched(glue, tmp_path):
    """A pair is dev when its ids, in that order, stand in the ids file: 20, 10 is not 10, 20."""
    folder = fetch_task("mrpc") / "MRPC"
    assert folder == tmp_path / "cache" / "glue" / "MRPC"
    assert (folder / "dev.tsv").read_text() == HEADER + PAIRS[0].rstrip()
    train = [example.text_a for example in load_task("mrpc", "train", folder.parent)]
    assert train == ["Three.", "Five."]
    glue.requests.clear()
    assert fetch_task("mrpc") == folder.parent and glue.requests == []  # the second time


def test_the_members_of_cola_are_taken_by_their_exact_names(glue, tmp_path):
    folder = fetch_task("cola") / "CoLA"
    assert sorted(os.listdir(folder)) == ["CoLA.zip", "dev.tsv", "train.tsv"]
    assert (folder / "train.tsv").read_text() == COLA
    assert (folder / "dev.tsv").read_text() == COLA + COLA
    assert not (folder.parent / "dev.tsv").exists()


def test_sources_that_are_there_are_used(glue, tmp_path, monkeypatch):
    """Whoever has MRPC's two source files needs no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TYPHOON_CACHE", str(tmp_path))
    folder = tmp_path / "glue" / "MRPC"
    folder.mkdir(parents=True)
    (folder / "msr_paraphrase_train.txt").write_text(HEADER + "".join(PAIRS))
    (folder / "mrpc_dev_ids.tsv").write_text("11\t21\n")
    pairs = load_task("mrpc", "dev", fetch_task("mrpc"))
    assert [pair.text_a for pair in pairs] == ["Three."]


def test_broken_archives_are_one_sentence(tmp_path):
    folder = tmp_path / "CoLA"
    folder.mkdir()
    whole = archive(folder / "CoLA.zip", {"CoLA/train.tsv": COLA * 50, "CoLA/dev.tsv": COLA * 50})
    lacking = archive(folder / "CoLA.zip", {"CoLA/train.tsv": COLA, "dev.tsv": COLA})
    for content in (b"", b"no archive", lacking, whole[:-30], whole[:60] + b"\xff" + whole[61:]):
        (folder / "CoLA.zip").write_bytes(content)
        with pytest.raises(UserError, match="CoLA: what was downloaded cannot be unpacked"):
            glue_data.unpack("cola", folder)
        assert os.listdir(folder) == ["CoLA.zip"]


def test_cache_dir(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    home = "/home/somebody/.cache/typhoon"
    for own, shared, expected in [("", "", home), ("", "/x", "/x/typhoon"), ("/t", "/x", "/t"),
                                  ("~/t", "", "/home/somebody/t"), ("", "~/.cache", home)]:
        monkeypatch.setenv("TYPHOON_CACHE", own)
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert glue_data.cache_dir() == Path(expected)
