"""The data: MRPC and CoLA of GLUE, as batches of WordPiece tokens. Read it top to bottom, as the data flows:

    fetching     find_task, fetch             where are the files, and are they whole?
    readers      load_task                    files -> examples: one or two sentences and a label
    tokenizer    Tokenizer                    sentences -> ids of word pieces, segments, word numbers
    batches      encode_split, epoch_batches  examples -> padded tensors -> batches of similar length
    metrics      metrics                      accuracy, F1, Matthews correlation

N examples, B of them in a batch, T positions, V token types. [A] is the paper's abstract, [C] its authors' 2023 code,
[D] our decision.
"""
from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import math
import os
import re
import unicodedata
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:  # torch and tqdm are imported where they are used: reading run logs need not wait for them
    import torch


class UserError(Exception):
    """What only the user can put right: what is wrong, where, what to do. The text is always one printable line."""

    def __init__(self, message: str):
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class DownloadError(UserError):
    """A file could not be had."""


@dataclass(frozen=True)
class Task:
    folder: str
    pair: bool
    metric: str  # the one to report [A]
    selection_metric: str  # the one that chooses the classifier's epoch [C]


TASKS = {"mrpc": Task(folder="MRPC", pair=True, metric="f1", selection_metric="accuracy"),
         "cola": Task(folder="CoLA", pair=False, metric="matthews", selection_metric="matthews")}


# ---- Fetching --------------------------------------------------------------------------------------------------------

HOST = "https://dl.fbaipublicfiles.com/"
DOWNLOADS = {  # address -> sha256
    "mrpc": {"senteval/senteval_data/msr_paraphrase_train.txt":
             "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
             "glue/data/mrpc_dev_ids.tsv": "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"},
    "cola": {"glue/data/CoLA.zip": "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"}}


def cache_dir() -> Path:
    """Where downloads are kept: $TYPHOON_CACHE, else $XDG_CACHE_HOME/typhoon, else ~/.cache/typhoon."""
    if own := os.environ.get("TYPHOON_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "typhoon")


def find_task(task: str, data_dir: str | Path | None = None) -> Path:
    """The directory with the task's folder, MRPC/ or CoLA/: data_dir, or our cache. What it lacks is downloaded into it.

    No file of the user's is overwritten.  Raises UserError, and DownloadError where the files cannot be had.
    """
    if data_dir is not None and not os.path.isdir(data_dir):
        raise UserError(f"{data_dir} is not a directory; make it, or mend --data-dir")
    root = cache_dir() / "glue" if data_dir is None else Path(data_dir)
    folder = root / TASKS[task].folder
    try:
        task_files(task, root)
    except UserError:
        if task == "mrpc" and any(os.path.exists(folder / name) for name in ("train.tsv", "dev.tsv")):
            raise  # half of somebody's own data: not ours to complete
        for address, sha256 in DOWNLOADS[task].items():
            path = fetch(HOST + address, folder / address.rpartition("/")[2], sha256)
        if task == "cola":
            extract(path, ["CoLA/train.tsv", "CoLA/dev.tsv"])
    return root


def fetch(url: str, destination: str | Path, sha256: str | None = None, timeout: float = 10) -> Path:
    """Download url to destination; under that name never stands anything but the whole, checked file.

    It grows as destination.part. After a break it is resumed for as long as each request brings something more; by a
    later call too where the sha256 is known, which would tell a bad join. The length is always checked. Of several
    processes one downloads and the others wait for it.  timeout: seconds of silence.  Raises DownloadError.
    """
    destination = Path(destination)
    partial = destination.with_name(destination.name + ".part")
    try:
        if destination.exists():
            return destination
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise OSError("HF_HUB_OFFLINE is set")
        destination.parent.mkdir(parents=True, exist_ok=True)
        with locked(destination.parent):
            if destination.exists():  # another process has just put it there
                return destination
            if sha256 is None:
                partial.unlink(missing_ok=True)
            while True:
                size = partial.stat().st_size if partial.exists() else 0
                try:
                    receive(url, partial, size, timeout)
                    break
                except (OSError, http.client.HTTPException):
                    if not partial.exists() or partial.stat().st_size <= size:
                        raise
            if sha256 and (found := file_fingerprint(partial)["sha256"]) != sha256:
                partial.unlink()
                raise OSError(f"its sha256 is {found}, not {sha256}")
            os.replace(partial, destination)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{url} cannot be downloaded to {destination} ({error}); check the network, the proxy variables "
                            "and the disk, or put the file there by hand") from None
    return destination


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time write downloads into a folder; a killed process leaves no lock behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def receive(url: str, partial: Path, start: int, timeout: float) -> None:
    """One request, for the bytes from start on. Raises OSError or HTTPException unless all of them come."""
    from tqdm import tqdm

    opener = urllib.request.OpenerDirector()  # urllib's own choice less file:, ftp: and data:, also where redirected
    for handler in ("ProxyHandler", "UnknownHandler", "HTTPHandler", "HTTPSHandler", "HTTPDefaultErrorHandler",
                    "HTTPRedirectHandler", "HTTPErrorProcessor"):
        opener.add_handler(getattr(urllib.request, handler)())
    headers = {"User-Agent": "typhoon"} | ({"Range": f"bytes={start}-"} if start else {})
    with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        resumed = start and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        start = start if resumed else 0  # else all of it comes, asked or not
        if response.length is None and not response.chunked:  # a chunked body marks its own end
            raise OSError("the server does not say how long it is")
        end = math.inf if response.length is None else start + response.length
        block = response.read(1 << 16)
        if response.headers.get_content_type() == "text/html" or not resumed and block.lstrip()[:1] in (b"<", b""):
            raise OSError("an HTML page or nothing came in its place")
        with open(partial, "ab" if resumed else "wb") as file, \
                tqdm(total=response.length and end, initial=start, unit="B", unit_scale=True, leave=False,
                     desc=partial.stem, disable=None) as bar:
            while block:
                start += file.write(block)
                bar.update(len(block))
                block = response.read(1 << 16) if start < end else b""
            os.fsync(file.fileno())
        if start < end < math.inf:
            raise OSError(f"it ended after {start} of {end} bytes")


def extract(archive: Path, members: Sequence[str]) -> None:
    """Put these members, found by exact name, beside their archive; all else stays in it. Raises UserError."""
    try:
        with zipfile.ZipFile(archive) as opened, locked(archive.parent):
            for member in members:
                path = archive.with_name(member.rpartition("/")[2])
                partial = path.with_name(path.name + ".part")
                if opened.getinfo(member).file_size > 1 << 28:
                    raise OSError(f"{member} claims more than 256 MB")
                if not path.exists():
                    partial.write_bytes(opened.read(member))
                    os.replace(partial, path)
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{archive} cannot be unpacked ({error}); delete it and try again") from None


def file_fingerprint(path: str | Path) -> dict:
    """{"bytes": size, "sha256": hexadecimal digest}. Raises UserError."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
            return {"bytes": file.tell(), "sha256": digest.hexdigest()}
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check that it is there and readable") from None


# ---- Readers ---------------------------------------------------------------------------------------------------------

@dataclass
class Example:
    text_a: str
    text_b: str | None  # None for CoLA
    label: int  # MRPC: 1 is a paraphrase; CoLA: 1 is acceptable


LAYOUTS = {"mrpc": [("train.tsv", "dev.tsv"), ("msr_paraphrase_train.txt", "dev_ids.tsv"),
                    ("msr_paraphrase_train.txt", "mrpc_dev_ids.tsv")],
           "cola": [("train.tsv", "dev.tsv")]}
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
LONGEST_LINE = 100_000  # bytes; GLUE's longest has under 500


def task_files(task: str, data_dir: str | Path) -> dict[str, Path]:
    """The two files that load_task reads for a task: name relative to data_dir -> path. Raises UserError."""
    folder = Path(data_dir) / TASKS[task].folder
    for names in LAYOUTS[task]:
        if all(os.path.exists(folder / name) for name in names):
            return {f"{folder.name}/{name}": folder / name for name in names}
    raise UserError(f"{folder} does not hold {', or '.join(' and '.join(names) for names in LAYOUTS[task])}; give "
                    "--data-dir a directory in GLUE's layout, or leave it out")


def load_task(task: str, split: str, data_dir: str | Path) -> list[Example]:
    """The examples of task "mrpc" or "cola", split "train" or "dev", in the files' order.

    The files are GLUE's {train,dev}.tsv, or for MRPC its source: one file of pairs, where a pair is dev if its two ids,
    in that order, are a row of the ids file.  Raises UserError naming file and line.
    """
    first, second = task_files(task, data_dir).values()
    if first.name == "train.tsv":
        path = first if split == "train" else second
        rows = read_table(path, 5, MRPC_HEADER) if task == "mrpc" else read_table(path, 4)
    else:
        rows, unused = read_table(first, 5, MRPC_HEADER), {}
        for where, ids in read_table(second, 2):
            if unused.setdefault(tuple(ids), where) != where:
                raise UserError(f"{where}: the same ids as in {unused[tuple(ids)]}; delete one of the two rows")
        dev_ids = set(unused)
        for _, fields in rows:
            unused.pop(tuple(fields[1:3]), None)
        for where in unused.values():
            raise UserError(f"{where}: {first} has no pair with these ids; the two files do not belong together")
        rows = [(where, fields) for where, fields in rows if (tuple(fields[1:3]) in dev_ids) == (split == "dev")]
        if not rows:
            raise UserError(f"{second} makes every pair of {first} a dev pair; get the two files again")
    examples = []
    for where, fields in rows:
        label, *texts = (fields[0], *fields[3:]) if task == "mrpc" else (fields[1], fields[3])
        if label not in ("0", "1"):
            raise UserError(f"{where}: the label is '{label:.30}'; it must be 0 or 1")
        if not all(text.strip() for text in texts):
            raise UserError(f"{where}: a sentence is empty; fill it in, or delete the line")
        examples.append(Example(texts[0], texts[1] if task == "mrpc" else None, int(label)))
    return examples


def read_table(path: Path, columns: int, header: str | None = None) -> list[tuple[str, list[str]]]:
    """Tab-separated rows, as ("file:line", fields); quotes are ordinary characters. Raises UserError."""
    lines = [(f"{path}:{number}", line) for number, line in enumerate(read_lines(path), 1)]
    if header and lines and lines.pop(0)[1] != header:
        raise UserError(f"{path}:1: the header must be {header!r}; add it, or get the file again")
    if not lines:
        raise UserError(f"{path}: the file holds no examples; get it again")
    for where, line in lines:
        if (found := line.count("\t") + 1) != columns:
            raise UserError(f"{where}: {found} columns, where {columns} separated by tabs must be; mend or delete the line")
    return [(where, line.split("\t")) for where, line in lines]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without BOM and line ends; only LF and CRLF end a line. Raises UserError."""
    lines: list[str] = []
    try:
        if not os.path.isfile(path):
            raise UserError(f"{path} is {'not a file' if os.path.exists(path) else 'missing'}; put the file there")
        with open(path, "rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE or b"\0" in line:
                    raise UserError(f"{path}:{len(lines) + 1}: the line holds a NUL byte or more than {LONGEST_LINE} "
                                    "bytes; this is not the right file")
                lines.append(line.removesuffix(b"\n").removesuffix(b"\r").decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{len(lines) + 1}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    return [line.removeprefix("\ufeff") for line in lines[:1]] + lines[1:]


# ---- Tokenizer -------------------------------------------------------------------------------------------------------

# To the `tokenizers` library, characters younger than Unicode 8 are no marks and no punctuation, and four have changed
# since. With its view written down here, a text has the same ids under every version of Python.
YOUNG = {code for span in """
    5C8-5C9 61D 7FD 890-8E2 9FD-9FE A76 AFA-AFF B53-B55 C04-C3C C77 C84 D00 D3B-D3C D81 EBA ECE 180F-1886 1ABF-1AF0
    1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E63 A82C A8C5 A8FF A9BD 10D24-10F89 11070-11074 110C2-110CD 111CF 1123E-11241
    1133B 113BB-1145E 11660-1166C 116B9 1182F-11FFF 12FF1-1612F 16D6D-16F4F 16FE2-16FE4 1CF00-1D128 1D25B-1D25C
    1E000-1E6F5 1E944-1E95F""".split() for code in range(int(span.split("-")[0], 16), int(span.split("-")[-1], 16) + 1)}
CHANGED = {0x166D: "Po", 0x1734: "Mn", 0x111C9: "Po", 0x1171E: "Mn"}
CHINESE = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
                     "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f])")


def category(character: str) -> str:
    """Unicode's general category in two letters, the first of them P for punctuation, C for control and the like."""
    return CHANGED.get(ord(character)) or ("Lo" if ord(character) in YOUNG else unicodedata.category(character))


@dataclass
class Encoding:
    ids: list[int]
    segments: list[int]  # 0 for [CLS] text_a [SEP], 1 for text_b [SEP]
    words: list[int]  # number of the word within its text; -1 for special tokens


class Tokenizer:
    """BERT's tokenizer: clean a text, split it into words, and each word into the longest pieces of the vocabulary.

    Agrees with the `tokenizers` library on every text, but for one that contains "[SEP]" or its like: here these are
    ordinary characters, so that no text can forge a special token.
    """

    def __init__(self, vocab_file: str | Path, lower_case: bool = True, strip_accents: bool | None = None,
                 chinese_characters: bool = True):
        """vocab_file: a token a line, whose id is the number of the line, from 0.  strip_accents None: as lower_case.

        chinese_characters: each is a word of its own.  Raises UserError for what is no vocabulary.
        """
        self.tokens = read_lines(Path(vocab_file))
        self.vocabulary: dict[str, int] = {}
        for number, token in enumerate(self.tokens):
            if not token or self.vocabulary.setdefault(token, number) != number:
                raise UserError(f"{vocab_file}:{number + 1}: '{token:.30}' is empty or there before; a vocabulary has one "
                                "token a line, each once")
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        if lacking := [token for token in special if token not in self.vocabulary]:
            raise UserError(f"{vocab_file} lacks {', '.join(lacking)}; give the vocabulary of a BERT-family model")
        self.special_ids = [self.vocabulary[token] for token in special]
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.lower_case, self.chinese_characters = lower_case, chinese_characters
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.cache: dict[str, tuple[list[int], list[int]]] = {}  # what stands between two spaces -> ids, words

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint: vocab.txt, and tokenizer_config.json where there is one. Raises UserError."""
        path = Path(directory) / "tokenizer_config.json"
        try:
            options = json.loads("\n".join(read_lines(path))) if os.path.exists(path) else {}
            arguments = [options.get("do_lower_case", True), options.get("strip_accents"),
                         options.get("tokenize_chinese_chars", True)]
        except (ValueError, RecursionError, AttributeError) as error:
            raise UserError(f"{path} is no JSON object ({error}); get the file again") from None
        if not {arguments[0], arguments[2]} <= {True, False} or arguments[1] not in (True, False, None):
            raise UserError(f"{path}: do_lower_case, strip_accents and tokenize_chinese_chars must be true or false")
        return cls(Path(directory) / "vocab.txt", *arguments)

    def encode(self, text_a: str, text_b: str | None = None, max_length: int = 128) -> Encoding:
        """[CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP], in at most max_length pieces.

        Texts too long lose pieces at their ends, one at a time, always the longer text. Where both are cut and an odd
        number is left, the one that was longer keeps one more, or text_b if they were equal (as `tokenizers` has it).
        Raises ValueError where max_length has no room for the special tokens.
        """
        a, words_a = self.pieces(text_a)
        b, words_b = ([], []) if text_b is None else self.pieces(text_b)
        room = max_length - (2 if text_b is None else 3)
        if room < 0:
            raise ValueError(f"max_length {max_length} has no room for the special tokens")
        if len(a) + len(b) > room:
            shorter = min(len(a), len(b), room // 2)
            keep_a, keep_b = (room - shorter, shorter) if len(a) > len(b) else (shorter, room - shorter)
            a, words_a, b, words_b = a[:keep_a], words_a[:keep_a], b[:keep_b], words_b[:keep_b]
        ids, segments, words = [self.cls_id, *a, self.sep_id], [0] * (len(a) + 2), [-1, *words_a, -1]
        if text_b is not None:
            ids, segments, words = [*ids, *b, self.sep_id], segments + [1] * (len(b) + 1), [*words, *words_b, -1]
        return Encoding(ids, segments, words)

    def pieces(self, text: str) -> tuple[list[int], list[int]]:
        """A text's piece ids, and of each piece the number of its word."""
        ids, words, word_count = [], [], 0
        for chunk in text.split(" "):
            if chunk not in self.cache:  # most are: it makes the tokenizer ten times faster
                split = [self.split_word(word) for word in self.split_text(chunk)]
                self.cache[chunk] = ([*chain(*split)], [number for number, word in enumerate(split) for _ in word])
            chunk_ids, chunk_words = self.cache[chunk]
            if chunk_ids:
                ids += chunk_ids
                words += [word_count + number for number in chunk_words]
                word_count = words[-1] + 1
        return ids, words

    def split_text(self, text: str) -> list[str]:
        """Words: cleaned, normalised, and split at white space and around every punctuation mark."""
        text = "".join(c for c in text if c in "\t\n\r" or c != "\ufffd" and category(c) not in ("Cc", "Cf", "Co", "Cs"))
        if self.chinese_characters:
            text = CHINESE.sub(r" \1 ", text)
        if self.strip_accents:
            text = "".join(c for c in unicodedata.normalize("NFD", text) if category(c) != "Mn")
        if self.lower_case:
            text = text.replace("\u03a3", "\u03c3").lower()  # Python's lower() knows another sigma at the end of a word
        return "".join(f" {c} " if category(c)[0] == "P" or c in "$+<=>^`|~" else c for c in text).split()

    def split_word(self, word: str) -> list[int]:
        """WordPiece: take the longest piece that is known, again and again; [UNK] for the word if that fails."""
        ids, start = [], 0
        while start < len(word) <= 100:
            for end in range(len(word), start, -1):
                if (piece := ("##" if start else "") + word[start:end]) in self.vocabulary:
                    break
            else:
                return [self.unknown_id]
            ids.append(self.vocabulary[piece])
            start = end
        return ids or [self.unknown_id]


# ---- Batches ---------------------------------------------------------------------------------------------------------

@dataclass
class Batch:
    ids: torch.Tensor  # (B, T) int64, T the longest of these B
    segments: torch.Tensor  # (B, T) int64
    words: torch.Tensor  # (B, T) int64; words >= 0 are the maskable positions
    attention_mask: torch.Tensor  # (B, T) bool, False at padding
    labels: torch.Tensor  # (B,) int64


@dataclass
class EncodedSplit:
    """A whole split, padded, made once and kept on the device: MRPC's takes 12 MB."""
    ids: torch.Tensor  # (N, T) int64
    segments: torch.Tensor  # (N, T) int64
    words: torch.Tensor  # (N, T) int64, -1 at special tokens and padding
    lengths: list[int]  # N, on the host
    labels: torch.Tensor  # (N,) int64

    def batch(self, rows: Sequence[int]) -> Batch:
        """The examples of these rows, cut to the longest of them."""
        import torch
        lengths, longest = [self.lengths[row] for row in rows], max(self.lengths[row] for row in rows)
        rows, lengths = torch.tensor([rows, lengths]).to(self.ids.device, non_blocking=True)  # (B,) each, one copy
        attention_mask = torch.arange(longest, device=self.ids.device) < lengths[:, None]
        return Batch(self.ids[rows, :longest], self.segments[rows, :longest], self.words[rows, :longest], attention_mask,
                     self.labels[rows])


def encode_split(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int,
                 device: str | torch.device = "cpu") -> EncodedSplit:
    """Tokenise the examples and pad them to the longest."""
    import torch
    encodings = [tokenizer.encode(example.text_a, example.text_b, max_length) for example in examples]
    lengths = [len(encoding.ids) for encoding in encodings]
    real = numpy.arange(max(lengths)) < numpy.array(lengths)[:, None]  # (N, T) bool

    def padded(name: str, padding: int) -> torch.Tensor:
        values = numpy.full(real.shape, padding)
        values[real] = [*chain.from_iterable(getattr(encoding, name) for encoding in encodings)]
        return torch.from_numpy(values).to(device)

    return EncodedSplit(padded("ids", tokenizer.pad_id), padded("segments", 0), padded("words", -1), lengths,
                        torch.tensor([example.label for example in examples], device=device))


def token_frequency(split: EncodedSplit, vocabulary_size: int) -> torch.Tensor:
    """(V,) float64: the relative frequency of each token type among the maskable positions [D]. Raises UserError."""
    import torch
    maskable = split.ids[split.words >= 0]
    if not len(maskable):
        raise UserError("the training sentences hold no word that could be masked; check the data files")
    return torch.bincount(maskable, minlength=vocabulary_size).double() / len(maskable)


def epoch_batches(lengths: Sequence[int], batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
    """One epoch's batches, as lists of rows: every example exactly once.

    With a generator (on the CPU): all examples are shuffled; each window of 50 batches is sorted by length, so that a
    batch holds sentences of like length and next to no padding; and the batches are shuffled. Every example is as
    likely early as late, and in ever new company, but of its own length. The order depends on the lengths and the
    generator alone: it is the same for all maskers.  None, for evaluation: by length, shortest first.
    """
    import torch
    if generator is None:
        order, window = range(len(lengths)), max(len(lengths), 1)
    else:
        order, window = torch.randperm(len(lengths), generator=generator).tolist(), 50 * batch_size
    batches = []
    for start in range(0, len(lengths), window):
        rows = sorted(order[start:start + window], key=lengths.__getitem__)
        batches += [rows[first:first + batch_size] for first in range(0, len(rows), batch_size)]
    if generator is None:
        return batches
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


# ---- Metrics ---------------------------------------------------------------------------------------------------------

def metrics(predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy, F1 of class 1 and Matthews correlation of 0/1 predictions; 0 where undefined, as in GLUE's scorer.

        F1 = 2 TP / (2 TP + FP + FN)       Matthews = (TP TN - FP FN) / sqrt((TP+FP) (TP+FN) (TN+FP) (TN+FN))
    """
    pairs = [*zip(map(int, predictions), map(int, labels), strict=True)]
    tp, tn, fp, fn = (pairs.count(pair) for pair in [(1, 1), (0, 0), (1, 0), (0, 1)])
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return {"accuracy": (tp + tn) / max(len(pairs), 1), "f1": 2 * tp / max(2 * tp + fp + fn, 1),
            "matthews": (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0}
