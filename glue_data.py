"""The data: MRPC and CoLA from GLUE, as WordPiece tokens in padded tensors.

Read it top to bottom, as the data flows:

    fetching     fetch, find_task             where do the files come from, and are they whole?
    readers      load_task                    files -> examples (one or two sentences and a label)
    tokenizer    Tokenizer                    sentences -> WordPiece ids, segments and word numbers
    batches      encode_split, epoch_batches  examples -> tensors -> batches of similar length
    metrics      metrics                      accuracy, F1 and Matthews correlation, as GLUE scores them

Bad input of any kind is a UserError: one sentence saying what is wrong, where, and what to do.
Notation: N examples, B of them in a batch, T positions, V token types.
Origins: [A] the paper's abstract, [C] its authors' 2023 code, [D] our decision; GLUE and BERT are named as such.
"""
from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import math
import os
import tempfile
import unicodedata
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy

if TYPE_CHECKING:  # torch and tqdm are imported where they are used: `train.py --help` need not wait for them
    import torch


class UserError(Exception):
    """Something only the user can put right; its text is always one printable line."""

    def __init__(self, message: str):
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class DownloadError(UserError):
    """A file could not be downloaded whole."""


@dataclass(frozen=True)
class Task:
    folder: str
    pair: bool
    metric: str  # reported [A]
    selection_metric: str  # chooses the classifier's epoch [C]


TASKS = {"mrpc": Task(folder="MRPC", pair=True, metric="f1", selection_metric="accuracy"),
         "cola": Task(folder="CoLA", pair=False, metric="matthews", selection_metric="matthews")}


# ---- Fetching --------------------------------------------------------------------------------------------------------

def cache_dir() -> Path:
    """Where downloads go: $TYPHOON_CACHE, else $XDG_CACHE_HOME/typhoon, else ~/.cache/typhoon."""
    if os.environ.get("TYPHOON_CACHE"):
        return Path(os.environ["TYPHOON_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "typhoon"


def file_fingerprint(path: str | Path) -> dict:
    """{"bytes": size, "sha256": hexadecimal digest} of a file. Raises UserError when it cannot be read."""
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error
    return {"bytes": size, "sha256": digest.hexdigest()}


def fetch(url: str, destination: str | Path, sha256: str | None = None, timeout: float = 10) -> Path:
    """Download url to destination and return it; nothing ever stands under that name but the whole, checked file.

    It grows as destination.part, under a lock, so that of several processes one downloads and the others wait. After
    a break it goes on from there (HTTP Range) where the server can and the sha256 will tell a bad join, else it starts
    anew. Its length is always checked, its sha256 where known, and an HTML page is never taken for a file.
    timeout: seconds without a byte.  A destination that exists is left alone.  Proxies are those of the environment.
    Raises DownloadError, also when HF_HUB_OFFLINE forbids the network.
    """
    destination = Path(destination)
    partial = destination.with_name(destination.name + ".part")
    if destination.exists():
        return destination
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise DownloadError(f"{destination} is missing and HF_HUB_OFFLINE forbids fetching it; unset that, or get the "
                            f"file from {url}")
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"{url} is not an http:// or https:// address; give one")
    new_folders = [folder for folder in (destination.parent, *destination.parent.parents) if not folder.exists()]
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _lock(partial) as file:
            if not destination.exists():  # else another process has just put it there
                if sha256 is None:
                    file.truncate(0)
                for _ in range(5):
                    if (broken := _receive(url, file, timeout)) is None:
                        break
                else:
                    raise DownloadError(f"{url}: {broken}; the same command tries again")
                file.flush()
                os.fsync(file.fileno())
                with open(partial, "rb") as received:
                    if received.read(512).lstrip().lower().startswith((b"<!doctype html", b"<html")):
                        file.truncate(0)
                        raise DownloadError(f"{url} brought an HTML page, not the file; open it in a browser to see why")
                if sha256 and (found := file_fingerprint(partial)["sha256"]) != sha256:
                    file.truncate(0)
                    raise DownloadError(f"{url} has sha256 {found}, not {sha256}; try again, or put the right file at "
                                        f"{destination} by hand")
                os.replace(partial, destination)
    except OSError as error:
        raise DownloadError(f"{destination} cannot be written ({error.strerror}); make room or choose a writable "
                            "folder") from error
    finally:
        if partial.exists() and partial.stat().st_size == 0:  # a failure leaves no litter
            partial.unlink()
            for folder in new_folders:
                if not any(folder.iterdir()):
                    folder.rmdir()
    return destination


def _lock(partial: Path) -> BinaryIO:
    """Open for appending and lock; once the lock is ours, the file must still be the one of that name."""
    while True:
        file = open(partial, "ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        if partial.exists() and os.path.samestat(os.fstat(file.fileno()), partial.stat()):
            return file
        file.close()


def _receive(url: str, file: BinaryIO, timeout: float) -> str | None:
    """One request: append what is missing. None when the file is whole, else what broke, if it is worth going on."""
    from tqdm import tqdm

    opener = urllib.request.OpenerDirector()  # urllib's defaults, less file:, ftp: and data:, also after a redirect
    for name in ("ProxyHandler", "UnknownHandler", "HTTPHandler", "HTTPSHandler", "HTTPDefaultErrorHandler",
                 "HTTPRedirectHandler", "HTTPErrorProcessor"):
        opener.add_handler(getattr(urllib.request, name)())
    start = file.seek(0, os.SEEK_END)
    headers = {"User-Agent": "typhoon", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing left to send: what we have is too long
            file.truncate(0)
            return "the server refused to resume"
        raise DownloadError(f"{url}: the server answered {error.code} {error.reason}; try later, or get the file by "
                            "hand") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{url} cannot be reached ({getattr(error, 'reason', error)}); check the network and the "
                            "proxy variables") from error
    with response:
        if response.headers.get_content_type() == "text/html":
            raise DownloadError(f"{url} brought an HTML page, not the file; open it in a browser to see why")
        if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            file.truncate(0)  # the server ignores Range and sends all of it
            start = 0
        length = response.headers.get("Content-Length")
        if length is None and not response.chunked:
            raise DownloadError(f"{url}: the server does not say how long the file is; get it by hand")
        received, broken = 0, None
        with tqdm(total=length and start + int(length), initial=start, unit="B", unit_scale=True, leave=False,
                  desc=url.rpartition("/")[2], disable=None) as bar:
            while length is None or received < int(length):
                try:
                    block = response.read(1 << 16)
                except (OSError, http.client.HTTPException) as error:
                    broken = f"the connection broke after {start + received} bytes ({error})"
                    break
                if not block:
                    break
                file.write(block)
                received += len(block)
                bar.update(len(block))
    if broken is None and length is not None and received < int(length):
        broken = f"the connection ended after {start + received} of {start + int(length)} bytes"
    if broken and received == 0:
        raise DownloadError(f"{url}: {broken}; check the network and try again")
    return broken


MRPC_DOWNLOADS = {  # name -> (address, sha256)
    "msr_paraphrase_train.txt": ("https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_train.txt",
                                 "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
    "mrpc_dev_ids.tsv": ("https://dl.fbaipublicfiles.com/glue/data/mrpc_dev_ids.tsv",
                         "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7")}
COLA_DOWNLOAD = ("https://dl.fbaipublicfiles.com/glue/data/CoLA.zip",
                 "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff")


def find_task(task: str, data_dir: str | Path | None = None) -> Path:
    """The directory whose MRPC/ or CoLA/ holds the task: data_dir, or our cache; what is missing is downloaded there.

    No file of the user's is overwritten.  Raises UserError, DownloadError.
    """
    root = Path(data_dir) if data_dir is not None else cache_dir() / "glue"
    folder = root / TASKS[task].folder
    try:
        task_files(task, root)
    except UserError:
        if task == "mrpc" and ((folder / "train.tsv").exists() or (folder / "dev.tsv").exists()):
            raise  # half of the user's own data: not ours to complete
        if task == "mrpc":
            for name, (url, sha256) in MRPC_DOWNLOADS.items():
                fetch(url, folder / name, sha256)
        else:
            extract(fetch(COLA_DOWNLOAD[0], folder / "CoLA.zip", COLA_DOWNLOAD[1]),
                    {"CoLA/train.tsv": folder / "train.tsv", "CoLA/dev.tsv": folder / "dev.tsv"})
    return root


def extract(archive: Path, members: dict[str, Path]) -> None:
    """Copy members, found by their exact names, out of a zip archive; all else in it is ignored. Raises UserError."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for name, path in members.items():
                if opened.getinfo(name).file_size > 1 << 28:
                    raise UserError(f"{archive}: {name} claims more than 256 MB; delete the archive and try again")
                if not path.exists():
                    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
                        file.write(opened.read(name))
                    os.replace(file.name, path)
    except KeyError as error:
        raise UserError(f"{archive} does not hold {name}; delete it and try again") from error
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise UserError(f"{archive} cannot be unpacked ({error}); delete it and try again") from error


# ---- Readers ---------------------------------------------------------------------------------------------------------

@dataclass
class Example:
    text_a: str
    text_b: str | None  # None for CoLA
    label: int  # MRPC: 1 is a paraphrase; CoLA: 1 is acceptable


LAYOUTS = {"mrpc": [("train.tsv", "dev.tsv"), ("msr_paraphrase_train.txt", "dev_ids.tsv"),
                    ("msr_paraphrase_train.txt", "mrpc_dev_ids.tsv")],
           "cola": [("train.tsv", "dev.tsv")]}
MRPC_HEADER = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
LONGEST_LINE = 100_000  # bytes; the longest of GLUE's has under 500


def task_files(task: str, data_dir: str | Path) -> dict[str, Path]:
    """The two files that load_task reads for a task: name relative to data_dir -> path. Raises UserError without them."""
    folder = Path(data_dir) / TASKS[task].folder
    for names in LAYOUTS[task]:
        if all((folder / name).exists() for name in names):
            return {f"{folder.name}/{name}": folder / name for name in names}
    choices = ", or ".join(" and ".join(names) for names in LAYOUTS[task])
    raise UserError(f"{folder} does not hold {choices}; point --data-dir at a directory in GLUE's layout")


def load_task(task: str, split: str, data_dir: str | Path) -> list[Example]:
    """The examples of task "mrpc" or "cola", split "train" or "dev", in the files' order.

    GLUE's layout: MRPC/{train,dev}.tsv, CoLA/{train,dev}.tsv. MRPC may also be Microsoft's one file of training pairs,
    where a pair is dev when its two ids, in that order, are a row of the ids file. Quotes are ordinary characters.
    Raises UserError naming file and line.
    """
    paths = {path.name: path for path in task_files(task, data_dir).values()}
    if "msr_paraphrase_train.txt" in paths:
        pairs_path, ids_path = paths.values()
        rows, dev_ids = read_table(pairs_path, MRPC_HEADER), {}
        for where, row in read_table(ids_path, columns=2):
            if tuple(row) in dev_ids:
                raise UserError(f"{where}: the ids {row[0]:.30} and {row[1]:.30} are there twice; delete one of the rows")
            dev_ids[tuple(row)] = where
        lost = dev_ids.keys() - {tuple(row[1:3]) for _, row in rows}
        for ids, where in dev_ids.items():
            if ids in lost:
                raise UserError(f"{where}: no pair of {pairs_path} has the ids {ids[0]:.30} and {ids[1]:.30}; the two "
                                "files do not belong together")
        rows = [(where, row) for where, row in rows if (tuple(row[1:3]) in dev_ids) == (split == "dev")]
        if not rows:
            raise UserError(f"{ids_path} makes every pair of {pairs_path} a dev pair; check the two files")
    else:
        rows = read_table(paths[split + ".tsv"], MRPC_HEADER if task == "mrpc" else None)
    examples = []
    for where, row in rows:
        label = row[0] if task == "mrpc" else row[1]
        text_a, text_b = row[3:5] if task == "mrpc" else (row[3], None)
        if label not in ("0", "1"):
            raise UserError(f"{where}: the label is '{label:.30}'; it must be 0 or 1")
        if not text_a.strip() or text_b is not None and not text_b.strip():
            raise UserError(f"{where}: a sentence is empty; fill it in or delete the line")
        examples.append(Example(text_a, text_b, int(label)))
    return examples


def read_table(path: Path, header: list[str] | None = None, columns: int = 4) -> list[tuple[str, list[str]]]:
    """Tab-separated rows as ("file:line", fields), below the header if there is one. Raises UserError."""
    rows = []
    columns = len(header) if header else columns
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if number == 1 and header:
            if fields != header:
                raise UserError(f"{path}:1: the header must be {', '.join(header)}, separated by tabs; it is '{line:.80}'")
        elif len(fields) != columns:
            raise UserError(f"{path}:{number}: expected {columns} columns separated by tabs, found {len(fields)}; mend "
                            "the line or delete it")
        else:
            rows.append((f"{path}:{number}", fields))
    if not rows:
        raise UserError(f"{path} holds no examples; get the file again")
    return rows


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, a BOM and LF or CRLF taken off; only these end a line. Raises UserError."""
    lines = []
    try:
        if not path.is_file():
            raise UserError(f"{path} is {'not a file' if path.exists() else 'missing'}; put the file there")
        with open(path, "rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                where = f"{path}:{len(lines) + 1}"
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{where}: the line is longer than {LONGEST_LINE} bytes; is this the right file?")
                if b"\0" in line:
                    raise UserError(f"{where}: the line holds a NUL byte; save the file as UTF-8 text")
                lines.append(line.removesuffix(b"\n").removesuffix(b"\r").decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if lines:
        lines[0] = lines[0].removeprefix("\ufeff")
    return lines


# ---- Tokenizer -------------------------------------------------------------------------------------------------------

# Characters younger than Unicode 8 are plain letters to the `tokenizers` library, be they marks or punctuation by now, and
# four have changed sides since. Taking its view gives a text the same ids under every version of Python.
YOUNG = {code for span in """
    5C8-5C9 61D 7FD 890-8E2 9FD-9FE A76 AFA-AFF B53-B55 C04-C3C C77 C84 D00 D3B-D3C D81 EBA ECE 180F-1886 1ABF-1AF0
    1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E63 A82C A8C5 A8FF A9BD 10D24-10F89 11070-11074 110C2-110CD 111CF 1123E-11241
    1133B 113BB-1145E 11660-1166C 116B9 1182F-11FFF 12FF1-1612F 16D6D-16F4F 16FE2-16FE4 1CF00-1D128 1D25B-1D25C
    1E000-1E6F5 1E944-1E95F""".split() for code in range(int(span.split("-")[0], 16), int(span.split("-")[-1], 16) + 1)}
CHANGED = {0x166D: "Po", 0x1734: "Mn", 0x111C9: "Po", 0x1171E: "Mn"}
CHINESE = [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B81F),
           (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F)]  # as the library has them


def category(character: str) -> str:
    """Unicode's two-letter general category, as of Unicode 8."""
    return CHANGED.get(ord(character)) or ("Lo" if ord(character) in YOUNG else unicodedata.category(character))


def is_control(character: str) -> bool:
    return category(character) in {"Cc", "Cf", "Co", "Cs"} and character not in "\t\n\r" or character == "\ufffd"


def is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in CHINESE)


def is_punctuation(character: str) -> bool:
    """Unicode's punctuation, and the ASCII symbols such as $ and ^."""
    return category(character)[0] == "P" or character in "$+<=>^`|~"


@dataclass
class Encoding:
    ids: list[int]
    segments: list[int]  # 0 for [CLS] text_a [SEP], 1 for text_b [SEP]
    words: list[int]  # number of the word within its text; -1 for special tokens


class Tokenizer:
    """BERT's tokenizer: clean and split a text into words, then each word into the longest known pieces (WordPiece).

    Gives what the `tokenizers` library gives for the same vocabulary, except that "[SEP]" and its like inside a text
    are ordinary characters, so that no text can forge a special token.
    """

    def __init__(self, vocab_file: str | Path, lower_case: bool = True, strip_accents: bool | None = None,
                 chinese_characters: bool = True):
        """vocab_file: one token a line, its id is the line number from 0.  strip_accents None: as lower_case.

        chinese_characters: every one is a word.  Raises UserError for a vocabulary that is not one.
        """
        self.tokens = read_lines(Path(vocab_file))
        self.vocabulary: dict[str, int] = {}
        for number, token in enumerate(self.tokens):
            if token in self.vocabulary or not token:
                reason = f"'{token:.30}' is also on line {self.vocabulary[token] + 1}" if token else "the line is blank"
                raise UserError(f"{vocab_file}:{number + 1}: {reason}; a vocabulary has one token a line, each once")
            self.vocabulary[token] = number
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        if missing := [token for token in special if token not in self.vocabulary]:
            raise UserError(f"{vocab_file} lacks {', '.join(missing)}; it is not the vocabulary of a BERT-family model")
        self.special_ids = [self.vocabulary[token] for token in special]
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.lower_case, self.chinese_characters = lower_case, chinese_characters
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.longest_token = max(map(len, self.tokens))
        self.cache: dict[str, tuple[list[int], list[int]]] = {}  # what stands between two spaces -> ids, words

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint: vocab.txt, and tokenizer_config.json where there is one. Raises UserError."""
        path, options = Path(directory) / "tokenizer_config.json", {}
        if path.exists():
            try:
                options = json.loads("\n".join(read_lines(path)))
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path} is not JSON ({error}); get the file again") from error
            if not isinstance(options, dict):
                raise UserError(f"{path} is not a JSON object; get the file again")
        arguments = []
        for key, default in [("do_lower_case", True), ("strip_accents", None), ("tokenize_chinese_chars", True)]:
            arguments.append(options.get(key, default))
            if not isinstance(arguments[-1], bool) and arguments[-1] is not default:
                raise UserError(f"{path}: {key} is {str(arguments[-1]):.30}; it must be true or false")
        return cls(Path(directory) / "vocab.txt", *arguments)

    def encode(self, text_a: str, text_b: str | None = None, max_length: int = 128) -> Encoding:
        """[CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP], at most max_length pieces.

        What is too long loses pieces from its end, one at a time, always from the longer of the two texts.
        Raises ValueError when max_length has no room for the special tokens.
        """
        ids_a, words_a = self.pieces(text_a)
        ids_b, words_b = self.pieces(text_b) if text_b is not None else ([], [])
        room = max_length - (2 if text_b is None else 3)
        if room < 0:
            raise ValueError(f"max_length is {max_length}: too short for the special tokens")
        a, b = longest_first(len(ids_a), len(ids_b), room)
        ids, words = [self.cls_id, *ids_a[:a], self.sep_id], [-1, *words_a[:a], -1]
        segments = [0] * len(ids)
        if text_b is not None:
            ids, words = [*ids, *ids_b[:b], self.sep_id], [*words, *words_b[:b], -1]
            segments += [1] * (b + 1)
        return Encoding(ids, segments, words)

    def pieces(self, text: str) -> tuple[list[int], list[int]]:
        """A text's piece ids and the number of the word of each."""
        ids, words, number_of_words = [], [], 0
        for chunk in text.split(" "):
            if not (known := self.cache.get(chunk)):  # four of five chunks of MRPC have been seen before
                known = self.cache[chunk] = [], []
                for number, word in enumerate(self.split_words(chunk)):
                    known[0].extend(word_ids := self.split_word(word))
                    known[1].extend([number] * len(word_ids))
            if known[0]:
                ids += known[0]
                words += [number_of_words + number for number in known[1]]
                number_of_words = words[-1] + 1
        return ids, words

    def split_words(self, text: str) -> list[str]:
        """Clean, normalise, and split at white space and around punctuation marks."""
        text = "".join(character for character in text if not is_control(character))
        if self.chinese_characters:
            text = "".join(f" {character} " if is_chinese(character) else character for character in text)
        if self.strip_accents:
            text = "".join(c for c in unicodedata.normalize("NFD", text) if category(c) != "Mn")
        if self.lower_case:
            text = text.replace("\u03a3", "\u03c3").lower()  # Python alone has another small sigma at a word's end
        return "".join(f" {character} " if is_punctuation(character) else character for character in text).split()

    def split_word(self, word: str) -> list[int]:
        """WordPiece: again and again the longest piece that is known; [UNK] for the whole word if none is."""
        ids, start = [], 0
        while start < len(word) <= 100:
            for end in range(min(len(word), start + self.longest_token), start, -1):
                piece = self.vocabulary.get(word[start:end] if start == 0 else "##" + word[start:end])
                if piece is not None:
                    break
            else:
                return [self.unknown_id]
            ids.append(piece)
            start = end
        return ids or [self.unknown_id]


def longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """How much of two texts of a and b pieces to keep, when pieces go one at a time from the longer one.

    Where both end up cut and room is odd, the one that was longer keeps one piece more (text_b if they were equal).
    """
    if a + b <= room:
        return a, b
    shorter = min(a, b, room // 2)
    return (room - shorter, shorter) if a > b else (shorter, room - shorter)


# ---- Batches ---------------------------------------------------------------------------------------------------------

@dataclass
class Batch:
    ids: torch.Tensor  # (B, T) int64
    segments: torch.Tensor  # (B, T) int64
    words: torch.Tensor  # (B, T) int64; words >= 0 are the maskable positions
    attention_mask: torch.Tensor  # (B, T) bool, False at padding
    labels: torch.Tensor  # (B,) int64


@dataclass
class EncodedSplit:
    """A whole split as padded tensors, made once and kept on the device: 12 MB for MRPC at 128 pieces."""
    ids: torch.Tensor  # (N, T) int64
    segments: torch.Tensor  # (N, T) int64
    words: torch.Tensor  # (N, T) int64, -1 at special tokens and padding
    lengths: list[int]  # N numbers of pieces, on the host
    labels: torch.Tensor  # (N,) int64

    def __post_init__(self):
        import torch
        positions = torch.arange(self.ids.shape[1])
        self.attention_mask = (positions < torch.tensor(self.lengths)[:, None]).to(self.ids.device)  # (N, T) bool

    def batch(self, rows: Sequence[int]) -> Batch:
        """The examples of these rows, cut to the longest of them."""
        import torch
        longest = max(self.lengths[row] for row in rows)
        rows = torch.tensor(rows).to(self.ids.device, non_blocking=True)  # (B,)
        return Batch(self.ids[rows, :longest], self.segments[rows, :longest], self.words[rows, :longest],
                     self.attention_mask[rows, :longest], self.labels[rows])


def encode_split(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int,
                 device: str | torch.device = "cpu") -> EncodedSplit:
    """Tokenise examples and pad them to the longest, on the device."""
    import torch
    encodings = [tokenizer.encode(example.text_a, example.text_b, max_length) for example in examples]
    lengths = [len(encoding.ids) for encoding in encodings]
    real = numpy.arange(max(lengths)) < numpy.array(lengths)[:, None]  # (N, T) bool

    def padded(rows: list[list[int]], padding: int) -> torch.Tensor:
        values = numpy.full(real.shape, padding, dtype=numpy.int64)
        values[real] = list(chain.from_iterable(rows))
        return torch.from_numpy(values).to(device)

    return EncodedSplit(padded([encoding.ids for encoding in encodings], tokenizer.pad_id),
                        padded([encoding.segments for encoding in encodings], 0),
                        padded([encoding.words for encoding in encodings], -1),
                        lengths, torch.tensor([example.label for example in examples], device=device))


def token_frequency(split: EncodedSplit, vocabulary_size: int) -> torch.Tensor:
    """(V,) float64: relative frequency of each token type among the maskable positions (no special tokens [D])."""
    import torch
    maskable = split.ids[split.words >= 0]
    if not len(maskable):
        raise UserError("the training sentences hold no maskable token; check the data files")
    return torch.bincount(maskable, minlength=vocabulary_size).double() / len(maskable)


def epoch_batches(lengths: Sequence[int], batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
    """One epoch's batches as lists of rows, every example exactly once.

    With a generator (on the CPU): shuffle all examples; within each window of 50 batches sort by length, so that a
    batch holds sentences of similar length and little padding; then shuffle the batches. Each example is as likely to
    be seen early as late, and its companions change from epoch to epoch, but are of its own length. The order depends
    on lengths and generator alone, hence is the same for all maskers.  None: all by length, for evaluation.
    """
    import torch
    if generator is None:
        order, window = list(range(len(lengths))), max(len(lengths), 1)
    else:
        order, window = torch.randperm(len(lengths), generator=generator).tolist(), 50 * batch_size
    batches = []
    for start in range(0, len(order), window):
        rows = sorted(order[start:start + window], key=lengths.__getitem__)
        batches += [rows[first:first + batch_size] for first in range(0, len(rows), batch_size)]
    if generator is None:
        return batches
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


# ---- Metrics ---------------------------------------------------------------------------------------------------------

def metrics(predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy, F1 of class 1 and Matthews correlation of 0/1 predictions; 0 where undefined, as GLUE's scorer has it.

        F1 = 2 TP / (2 TP + FP + FN)
        Matthews = (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN))
    """
    predictions, labels = numpy.asarray(predictions), numpy.asarray(labels)
    if predictions.shape != labels.shape or predictions.ndim != 1:
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must be of one length")
    true_positives = int(((predictions == 1) & (labels == 1)).sum())
    true_negatives = int(((predictions == 0) & (labels == 0)).sum())
    false_positives = int(((predictions == 1) & (labels == 0)).sum())
    false_negatives = int(((predictions == 0) & (labels == 1)).sum())
    errors = false_positives + false_negatives
    product = ((true_positives + false_positives) * (true_positives + false_negatives)
               * (true_negatives + false_positives) * (true_negatives + false_negatives))
    return {"accuracy": (true_positives + true_negatives) / max(len(labels), 1),
            "f1": 2 * true_positives / max(2 * true_positives + errors, 1),
            "matthews": ((true_positives * true_negatives - false_positives * false_negatives) / math.sqrt(product)
                         if product else 0.0)}
