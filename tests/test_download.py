"""Downloads, against a server on this machine that breaks in every way that servers, proxies and disks do."""
import fcntl
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import glue_data
import pytest
from glue_data import DownloadError, UserError, fetch

CONTENT = bytes(range(256)) * 1000  # 256 kB: four blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PAGE = b"\n <!DOCTYPE html><html><body>Please log in</body></html>"


class Handler(BaseHTTPRequestHandler):
    """The first part of the path says how to behave; the server keeps the Range headers it was asked with."""

    def log_message(self, *arguments):
        pass

    def answer(self, status: int = 200, content: bytes = CONTENT, length: int | None = -1, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is not None:
            self.send_header("Content-Length", str(len(content) if length == -1 else length))
        self.end_headers()
        self.wfile.write(content)

    def answer_range(self, until: int | None = None, total: int | None = None) -> None:
        """The rest from where the Range header says, or less of it than was promised."""
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if start >= len(CONTENT):
            return self.answer(416, b"")
        self.answer(206, CONTENT[start:until], len(CONTENT) - start,
                    Content_Range=f"bytes {start}-{len(CONTENT) - 1}/{total or len(CONTENT)}")

    def do_GET(self) -> None:
        behaviour, first = self.path.split("/")[-1].partition("?")[0], not self.server.ranges
        self.server.ranges.append(self.headers["Range"])
        self.server.paths.append(self.path)
        if behaviour == "ranges":
            self.answer_range()
        elif behaviour == "plain":
            self.answer()
        elif behaviour == "breaks-once":
            self.answer_range(until=100_000 if first else None)
        elif behaviour == "breaks-once-no-ranges":
            self.answer(content=CONTENT[:100_000] if first else CONTENT, length=len(CONTENT))
        elif behaviour == "breaks-always":
            self.answer(content=CONTENT[:100_000], length=len(CONTENT))
        elif behaviour == "stalls-once":
            self.answer_range(until=150_000 if first else None)
            time.sleep(5 if first else 0)
        elif behaviour == "silent":
            time.sleep(5)
        elif behaviour == "wrong-content":
            self.answer(content=CONTENT[::-1])
        elif behaviour == "short-range":  # a part, called a part
            self.answer(206, CONTENT[:1000], Content_Range=f"bytes 0-999/{len(CONTENT)}")
        elif behaviour == "page":
            self.answer(content=PAGE, Content_Type="text/html; charset=utf-8")
        elif behaviour == "page-as-file":
            self.answer(content=PAGE, Content_Type="application/octet-stream")
        elif behaviour == "nothing":
            self.answer(content=b"")
        elif behaviour == "no-length":
            self.answer(length=None)
        elif behaviour in ("chunked", "chunked-broken"):
            chunk = b"%x\r\n%s\r\n" % (len(CONTENT), CONTENT)
            self.answer(content=chunk + b"0\r\n\r\n" if behaviour == "chunked" else chunk[:-1000], length=None,
                        Transfer_Encoding="chunked")
        elif behaviour == "redirect":
            self.answer(302, b"", Location="/ranges")
        elif behaviour == "redirect-loop":
            self.answer(302, b"", Location="/redirect-loop")
        elif behaviour == "redirect-file":
            self.answer(302, b"", Location="file:///etc/hostname")
        elif behaviour == "slow":
            self.answer_slowly()
        else:
            self.answer(int(behaviour), PAGE, Content_Type="text/html")

    def answer_slowly(self) -> None:
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        for place in range(start, len(CONTENT), 16_000):
            self.wfile.write(CONTENT[place:place + 16_000])
            time.sleep(0.03)


class Server(ThreadingHTTPServer):
    def handle_error(self, *arguments):  # clients that hang up are what some tests are about
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("urllib.request._opener", None)  # it keeps the proxies of the first request
    server = Server(("127.0.0.1", 0), Handler)
    server.ranges, server.paths = [], []
    server.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def assert_fails(url: str, destination: Path, *fragments: str, sha256: str | None = None) -> None:
    """One printable sentence, and nothing under the final name."""
    with pytest.raises(DownloadError) as caught:
        fetch(url, destination, sha256, timeout=1 if url.endswith("silent") else 10)
    text = str(caught.value)
    assert text.isprintable() and "; " in text and destination.name in text
    for fragment in fragments:
        assert fragment in text, text
    assert not os.path.exists(destination)


@pytest.mark.parametrize("behaviour", ["ranges", "plain", "chunked", "redirect", "breaks-once", "breaks-once-no-ranges",
                                       "stalls-once"])
@pytest.mark.parametrize("sha256", [SHA256, None], ids=["sha256", "no sha256"])
def test_fetch(server, tmp_path, behaviour, sha256):
    destination = tmp_path / "new" / "folder" / "file"
    timeout = 1 if behaviour == "stalls-once" else 10
    assert fetch(server.url + behaviour, destination, sha256, timeout) == destination
    assert destination.read_bytes() == CONTENT and os.listdir(destination.parent) == ["file"]
    if behaviour in ("breaks-once", "stalls-once"):
        assert len(server.ranges) == 2 and 0 < int(server.ranges[1][6:-1]) < len(CONTENT)  # it was resumed


@pytest.mark.parametrize("behaviour, fragment", [
    ("wrong-content", "sha256"), ("page", "web page"), ("page-as-file", "web page"), ("nothing", "0 of 0"),
    ("breaks-always", "100000 of 256000"), ("no-length", "how long"), ("chunked-broken", "IncompleteRead"),
    ("short-range", "bytes 0-999/256000 instead"), ("404", "404"), ("500", "500"), ("403", "403"),
    ("silent", "timed out"), ("redirect-loop", "302"), ("redirect-file", "file:///etc/hostname"), ("416", "416")])
def test_fetch_fails_in_one_sentence(server, tmp_path, behaviour, fragment):
    assert_fails(server.url + behaviour, tmp_path / "file", fragment, sha256=SHA256)
    if behaviour not in ("wrong-content", "no-length"):
        assert_fails(server.url + behaviour, tmp_path / "file", fragment)


def test_a_file_whose_sha256_is_unknown_needs_a_known_length(server, tmp_path):
    assert_fails(server.url + "no-length", tmp_path / "file", "how long")


@pytest.mark.parametrize("url", [
    "file:///etc/hostname", "data:text/plain,hello", "ftp://127.0.0.1:1/x", "nonsense", "http://", "http://[bad",
    "http://127.0.0.1:1/refused", "http://127.0.0.1:port/", "http://a b\r\nc/"])
def test_unreachable_and_foreign_addresses(server, tmp_path, url):
    assert_fails(url, tmp_path / "file")


def test_a_later_call_resumes_where_the_sha256_is_known(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1234])
    fetch(server.url + "ranges", tmp_path / "file", SHA256)
    assert server.ranges == ["bytes=1234-"] and (tmp_path / "file").read_bytes() == CONTENT
    (tmp_path / "other.part").write_bytes(b"what another version began with")
    fetch(server.url + "ranges", tmp_path / "other")
    assert server.ranges[1:] == ["bytes=0-"] and (tmp_path / "other").read_bytes() == CONTENT


@pytest.mark.parametrize("left_over", [CONTENT, CONTENT + b"more", CONTENT * 2], ids=["whole", "longer", "twice"])
def test_a_left_over_that_is_too_long_is_dropped(server, tmp_path, left_over):
    (tmp_path / "file.part").write_bytes(left_over)
    fetch(server.url + "ranges", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_bad_join_is_found_and_the_next_call_starts_anew(server, tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1234)
    assert_fails(server.url + "ranges", tmp_path / "file", "sha256", sha256=SHA256)
    fetch(server.url + "ranges", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT and server.ranges == ["bytes=1234-", "bytes=0-"]


def test_a_web_page_does_not_cost_what_is_there_already(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1234])
    for behaviour in ("page", "404", "silent"):
        assert_fails(server.url + behaviour, tmp_path / "file", sha256=SHA256)
    fetch(server.url + "ranges", tmp_path / "file", SHA256)
    assert server.ranges[-1] == "bytes=1234-"


@pytest.mark.parametrize("offline", ["", "1"])
def test_what_exists_is_left_alone(server, tmp_path, monkeypatch, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    (tmp_path / "file").write_text("mine")
    assert fetch(server.url + "404", tmp_path / "file", SHA256).read_text() == "mine" and server.ranges == []


def test_offline(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_fails(server.url + "plain", tmp_path / "new" / "file", "HF_HUB_OFFLINE")
    assert server.ranges == [] and list(tmp_path.iterdir()) == []


def test_proxy_variables_are_honoured(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    fetch("http://elsewhere.invalid/plain", tmp_path / "file", SHA256)
    assert server.paths == ["http://elsewhere.invalid/plain"]


def test_no_place_to_write(server, tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    assert_fails(server.url + "plain", tmp_path / "file" / "inner", "File exists")
    assert_fails(server.url + "plain", tmp_path / ("n" * 300), "too long")
    (tmp_path / "folder.part").mkdir()
    assert_fails(server.url + "plain", tmp_path / "folder", "directory")


CHILD = "import sys, glue_data; print(glue_data.fetch(*sys.argv[1:4]).stat().st_size)"


def child(root: Path, *arguments, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, *map(str, arguments)], cwd=root, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_full_disk(server, tmp_path, root):
    """A limit on the size of files stops the write as a full disk does."""
    process = child(root, server.url + "ranges", tmp_path / "file", SHA256,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "DownloadError" in errors.splitlines()[-1] and "too large" in errors
    assert not (tmp_path / "file").exists()
    fetch(server.url + "ranges", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT and server.ranges[-1] == "bytes=100000-"


def test_several_processes_fetch_it_once(server, tmp_path, root):
    processes = [child(root, server.url + "slow", tmp_path / "file", SHA256) for _ in range(3)]
    assert [process.communicate(timeout=60) for process in processes] == [(f"{len(CONTENT)}\n", "")] * 3
    assert server.ranges == ["bytes=0-"] and os.listdir(tmp_path) == ["file"]


def test_who_waited_takes_what_the_other_fetched(server, tmp_path):
    with open(tmp_path / "file.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=fetch, args=(server.url + "plain", tmp_path / "file"))
        waiting.start()
        time.sleep(0.2)
        assert waiting.is_alive() and server.ranges == []
        (tmp_path / "file").write_bytes(CONTENT)
    waiting.join(timeout=10)
    assert os.listdir(tmp_path) == ["file"] and server.ranges == []


def test_a_killed_process_is_resumed(server, tmp_path, root):
    process = child(root, server.url + "slow", tmp_path / "file", SHA256)
    deadline = time.monotonic() + 30
    while not ((partial := tmp_path / "file.part").exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert os.listdir(tmp_path) == ["file.part"]
    size = partial.stat().st_size
    fetch(server.url + "ranges", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT and server.ranges[-1] == f"bytes={size}-" and size > 0


# ---- GLUE ------------------------------------------------------------------------------------------------------------

COLA = "gj04\t1\t\tThe wind blew.\n"


def archive(path: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return path


def test_zip_members_are_taken_by_exact_name_and_nothing_else(tmp_path):
    """Names with ../ or an absolute one go nowhere, and cannot pass for the ones that are asked for."""
    folder = tmp_path / "outer" / "CoLA"
    folder.mkdir(parents=True)
    outside = tmp_path / "absolute"
    path = archive(folder / "CoLA.zip", {
        "../evil": "x", "../../CoLA/train.tsv": "x", str(outside): "x", "CoLA/../../evil": "x", "train.tsv": "x",
        "CoLA/train.tsv": COLA, "CoLA/dev.tsv": COLA, "CoLA/test.tsv": "x"})
    glue_data.extract(path, ["CoLA/train.tsv", "CoLA/dev.tsv"])
    assert sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()) == [
        "outer/CoLA/CoLA.zip", "outer/CoLA/dev.tsv", "outer/CoLA/train.tsv"]
    assert (folder / "train.tsv").read_text() == COLA


def test_zip_never_overwrites(tmp_path):
    (tmp_path / "train.tsv").write_text("mine")
    glue_data.extract(archive(tmp_path / "CoLA.zip", {"CoLA/train.tsv": COLA}), ["CoLA/train.tsv"])
    assert (tmp_path / "train.tsv").read_text() == "mine"


def test_broken_archives(tmp_path):
    noise = random.Random(0).randbytes(5000)
    whole = archive(tmp_path / "whole.zip", {"CoLA/train.tsv": COLA * 50, "CoLA/dev.tsv": noise}).read_bytes()
    lacking = archive(tmp_path / "lacking.zip", {"CoLA/dev.tsv": COLA}).read_bytes()
    cases = [b"", b"PK", b"no archive at all", lacking, whole[:-30], whole[20:], whole[:44] + b"\xff" + whole[45:],
             whole[:26] + b"\x07\x07" + whole[28:]]  # a name of 1799 bytes, which zipfile's error quotes
    for content in cases:
        (tmp_path / "CoLA.zip").write_bytes(content)
        with pytest.raises(UserError) as caught:
            glue_data.extract(tmp_path / "CoLA.zip", ["CoLA/train.tsv"])
        assert "CoLA.zip cannot be unpacked" in str(caught.value) and str(caught.value).isprintable()
        assert len(str(caught.value)) < 500
        assert not (tmp_path / "train.tsv").exists()


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """GLUE's files on the server, instead of the real ones."""
    pairs = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\ta\tb\n0\t3\t4\tc\td\n"
    files = {"msr_paraphrase_train.txt": pairs.encode(), "mrpc_dev_ids.tsv": b"3\t4\n", "CoLA.zip":
             archive(tmp_path / "CoLA.zip", {"CoLA/train.tsv": COLA, "CoLA/dev.tsv": COLA + COLA}).read_bytes()}
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.answer(content=files[self.path.rpartition("/")[2]]))
    monkeypatch.setattr(glue_data, "HOST", server.url)
    monkeypatch.setattr(glue_data, "DOWNLOADS", {
        task: {address: hashlib.sha256(files[address.rpartition("/")[2]]).hexdigest() for address in addresses}
        for task, addresses in glue_data.DOWNLOADS.items()})
    monkeypatch.setenv("TYPHOON_CACHE", str(tmp_path / "cache"))
    return server


@pytest.mark.parametrize("own_directory", [True, False])
def test_find_task_downloads_what_is_missing(hub, tmp_path, monkeypatch, own_directory):
    (tmp_path / "glue").mkdir()
    data_dir = tmp_path / "glue" if own_directory else None
    for _ in range(2):
        root = glue_data.find_task("mrpc", data_dir)
        assert root == (data_dir or tmp_path / "cache" / "glue") == glue_data.find_task("cola", data_dir)
        sizes = [len(glue_data.load_task(task, split, root)) for task in ("mrpc", "cola") for split in ("train", "dev")]
        assert sizes == [1, 1, 1, 2]
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the second time the files are there


def test_find_task_completes_cola_but_overwrites_nothing(hub, tmp_path):
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "CoLA" / "train.tsv").write_text("mine\t1\t\tThe wind.\n")
    assert glue_data.load_task("cola", "train", glue_data.find_task("cola", tmp_path))[0].text_a == "The wind."


def test_find_task_refuses_half_of_the_users_own_data_and_a_mistyped_directory(hub, tmp_path):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_text("mine")
    for directory in (tmp_path, tmp_path / "mistyped"):
        with pytest.raises(UserError, match="MRPC does not hold train.tsv and dev.tsv"):
            glue_data.find_task("mrpc", directory)
    assert os.listdir(tmp_path / "MRPC") == ["train.tsv"] and not (tmp_path / "mistyped").exists()


def test_find_task_offline(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TYPHOON_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        glue_data.find_task("cola")
    assert not (tmp_path / "cache").exists()


def test_cache_dir(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    cases = [("", "", "/home/somebody/.cache/typhoon"), ("", "/x", "/x/typhoon"), ("/t", "/x", "/t")]
    for own, shared, expected in cases:
        monkeypatch.setenv("TYPHOON_CACHE", own)
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert glue_data.cache_dir() == Path(expected)
