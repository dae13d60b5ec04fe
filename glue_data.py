"""The data: MRPC and CoLA of GLUE, as batches of word pieces. Read it top to bottom, as the data flows:

    fetching     find_task, fetch             where are the files, and are they whole?
    readers      load_task                    files -> examples: one or two sentences and a label
    tokenizer    Tokenizer                    sentences -> ids of word pieces, segments, word numbers
    batches      encode_split, epoch_batches  examples -> padded tensors -> batches of similar length
    metrics      metrics                      accuracy, F1, Matthews correlation

N examples, B in a batch, T positions, V token types. [A] the abstract, [C] the authors' 2023 code, [D] our choice.
"""
from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import lzma
import os
import re
import unicodedata
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy

if TYPE_CHECKING:  # torch and tqdm are imported where they are used: who wants only UserError need not wait for them
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
    metric: str  # the one to report [A]
    selection_metric: str  # the one that chooses the classifier's epoch [C]


TASKS = {"mrpc": Task(folder="MRPC", metric="f1", selection_metric="accuracy"),
         "cola": Task(folder="CoLA", metric="matthews", selection_metric="matthews")}


# ---- Fetching --------------------------------------------------------------------------------------------------------

HOST = "https://dl.fbaipublicfiles.com/"
DOWNLOADS = {  # address -> sha256
    "mrpc": {"senteval/senteval_data/msr_paraphrase_train.txt":
             "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
             "glue/data/mrpc_dev_ids.tsv": "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"},
    "cola": {"glue/data/CoLA.zip": "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"}}


def cache_dir() -> Path:
    """Where downloads are kept: $TYPHOON_CACHE, else $XDG_CACHE_HOME/typhoon, else ~/.cache/typhoon."""
    own, shared = os.environ.get("TYPHOON_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(own) if own else Path(shared or Path.home() / ".cache", "typhoon")
    except RuntimeError:
        raise UserError("there is no home directory to keep downloads in; set TYPHOON_CACHE to a directory") from None


def find_task(task: str, data_dir: str | Path | None = None) -> Path:
    """The directory that holds MRPC/ or CoLA/: data_dir, or our cache. What it lacks is fetched. Raises UserError."""
    root = cache_dir() / "glue" if data_dir is None else Path(data_dir)
    folder = root / TASKS[task].folder
    try:
        task_files(task, root)
    except UserError:
        half = task == "mrpc" and any(os.path.exists(folder / name) for name in ("train.tsv", "dev.tsv"))
        if half or data_dir is not None and not os.path.isdir(root):
            raise  # half of somebody's own data is not ours to complete, and a mistyped directory not ours to make
        for address, sha256 in DOWNLOADS[task].items():
            path = fetch(HOST + address, folder / os.path.basename(address), sha256)
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
        with open(partial, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # it ends with the process, even a killed one
            if destination.exists():  # while we waited, another process has put it there
                partial.unlink(missing_ok=True)
                return destination
            if sha256 is None:
                file.truncate(0)
            while not receive(url, file, timeout):
                pass
            if sha256 and (found := file_fingerprint(partial)["sha256"]) != sha256:
                file.truncate(0)
                raise OSError(f"its sha256 is {found}, not {sha256}")
            os.replace(partial, destination)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{url} cannot be downloaded to {destination} ({error!s:.200}); check the network, the "
                            "proxy variables and the disk, or put the file there by hand") from None
    return destination


def receive(url: str, file: BinaryIO, timeout: float) -> bool:
    """One request, for what the file lacks: True if it is whole now, False if it has grown. Raises if neither."""
    from tqdm import tqdm

    size = before = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"User-Agent": "typhoon", "Range": f"bytes={size}-"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if not response.url.startswith(("http://", "https://")):
                raise OSError("only http: and https: are fetched")
            if response.headers.get_content_type() == "text/html":
                raise OSError("a web page came in its place")
            content_range, end = response.headers.get("Content-Range"), response.length
            if content_range is None:  # all of it comes, asked or not
                size = file.truncate(0)
            elif content_range.startswith(f"bytes {size}-"):
                end = int(content_range.rpartition("/")[2])
            else:
                raise OSError(f"the server sends {content_range} instead")
            if end is None and not response.chunked:  # a chunked body marks its own end
                raise OSError("the server does not say how long it is")
            with tqdm(desc=os.path.basename(url), initial=size, total=end, unit="B", unit_scale=True, leave=False,
                      disable=None) as bar:
                while size != end and (block := response.read(1 << 16)):
                    if size == 0 and block.lstrip()[:1] == b"<":
                        raise OSError("a web page came in its place")
                    size += file.write(block)
                    bar.update(len(block))
        if not size or end not in (None, size):
            raise OSError(f"it ended after {size} of {end} bytes")
        file.flush()
        os.fsync(file.fileno())
        return True
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        if before and getattr(error, "code", None) == 416:
            file.truncate(0)  # the file has more than there is
        elif file.seek(0, os.SEEK_END) <= before:
            raise
        return False


def extract(archive: Path, members: Sequence[str]) -> None:
    """Put these members, found by exact name, beside their archive; all else stays in it. Raises UserError."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in members:
                path = archive.with_name(os.path.basename(member))
                if not path.exists():
                    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
                    partial.write_bytes(opened.read(member))
                    os.replace(partial, path)
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error,
            lzma.LZMAError) as error:
        raise UserError(f"{archive} cannot be unpacked ({error!s:.200}); delete it and try again") from None


def file_fingerprint(path: str | Path) -> dict:
    """{"bytes": size, "sha256": hexadecimal digest}. Raises UserError."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check that it is there and readable") from None
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


# ---- Readers ---------------------------------------------------------------------------------------------------------

@dataclass
class Example:
    text_a: str
    text_b: str | None  # None for CoLA
    label: int  # MRPC: 1 is a paraphrase; CoLA: 1 is acceptable


LAYOUTS = {"cola": [("train.tsv", "dev.tsv")],
           "mrpc": [("train.tsv", "dev.tsv"), ("msr_paraphrase_train.txt", "dev_ids.tsv"),
                    ("msr_paraphrase_train.txt", "mrpc_dev_ids.tsv")]}
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
    if task not in TASKS or split not in ("train", "dev"):
        raise UserError(f"there is no split {split!r} of {task!r}; tasks are {', '.join(TASKS)}, splits train and dev")
    first, second = task_files(task, data_dir).values()
    if first.name == "train.tsv":
        rows = read_table(first if split == "train" else second, *((5, MRPC_HEADER) if task == "mrpc" else (4,)))
    else:
        rows, dev_ids = read_table(first, 5, MRPC_HEADER), set()
        all_ids = {tuple(fields[1:3]) for _, fields in rows}
        for where, ids in read_table(second, 2):
            if tuple(ids) in dev_ids or tuple(ids) not in all_ids:
                raise UserError(f"{where}: no pair of {first}, or an earlier line, has these ids; get both files again")
            dev_ids.add(tuple(ids))
        rows = [(where, fields) for where, fields in rows if (tuple(fields[1:3]) in dev_ids) == (split == "dev")]
        if not rows:
            raise UserError(f"{second} makes every pair of {first} a dev pair; get both files again")
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
    rows = [(f"{path}:{number}", line.split("\t")) for number, line in enumerate(read_lines(path), 1)]
    if header and rows and rows.pop(0)[1] != header.split("\t"):
        raise UserError(f"{path}:1: the first line must be {header!r}; add it, or get the file again")
    if not rows:
        raise UserError(f"{path} holds no examples; get it again")
    for where, fields in rows:
        if len(fields) != columns:
            raise UserError(f"{where}: {len(fields)} columns, not {columns} separated by tabs; mend or delete the line")
    return rows


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without BOM and line ends; only LF and CRLF end a line. Raises UserError."""
    lines: list[str] = []
    try:
        with open(path, "rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                if b"\0" in line or len(line) > LONGEST_LINE:
                    raise ValueError(f"has a NUL byte or more than {LONGEST_LINE} bytes")
                lines.append(line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8" if lines else "utf-8-sig"))
    except ValueError as error:
        reason = f"is not UTF-8 at byte {error.start + 1}" if isinstance(error, UnicodeDecodeError) else error
        raise UserError(f"{path}:{len(lines) + 1}: the line {reason}; save the file as UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check that it is there and readable") from None
    return lines


# ---- Tokenizer -------------------------------------------------------------------------------------------------------

# The `tokenizers` library knows Unicode 8: younger characters are letters to it, be they marks or punctuation now, and
# four have changed since. With its view written down, a text has the same ids under every version of Python.
CATEGORIES = {code: "Lo" for span in """
    5C8-5C9 61D-61D 7FD-7FD 890-8E2 9FD-9FE A76-A76 AFA-AFF B53-B55 C04-C3C C77-C77 C84-C84 D00-D00 D3B-D3C D81-D81
    EBA-EBA ECE-ECE 180F-1886 1ABF-1AF0 1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E63 A82C-A82C A8C5-A8C5 A8FF-A8FF A9BD-A9BD
    10D24-10F89 11070-11074 110C2-110CD 111CF-111CF 1123E-11241 1133B-1133B 113BB-1145E 11660-1166C 116B9-116B9
    1182F-11FFF 12FF1-1612F 16D6D-16F4F 16FE2-16FE4 1CF00-1D128 1D25B-1D25C 1E000-1E6F5 1E944-1E95F""".split()
    for first, last in [span.split("-")] for code in range(int(first, 16), int(last, 16) + 1)}
CATEGORIES |= {0x166D: "Po", 0x1734: "Mn", 0x111C9: "Po", 0x1171E: "Mn"}
CONTROL = ("Cc", "Cf", "Co", "Cs")  # dropped; unassigned code points, Cn, are not
CHINESE = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
                     "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f])")


def category(character: str) -> str:
    """Unicode's general category in two letters, such as Po for punctuation or Mn for accents."""
    return CATEGORIES.get(ord(character)) or unicodedata.category(character)


@dataclass
class Encoding:
    ids: list[int]
    segments: list[int]  # 0 for [CLS] text_a [SEP], 1 for text_b [SEP]
    words: list[int]  # number of the word within its text; -1 for special tokens


class Tokenizer:
    """BERT's tokenizer: clean a text, split it into words, and each word into the longest pieces of the vocabulary.

    vocab_file: one token a line; its id is the number of the line, from 0.  lower_case: of the text.  strip_accents:
    None is as lower_case.  chinese_characters: each is a word.  Raises UserError for what is no BERT vocabulary.
    Agrees with the `tokenizers` library on every text, but for one that contains "[SEP]" or its like: here these are
    ordinary characters, so that no text can forge a special token.
    """

    def __init__(self, vocab_file: str | Path, lower_case: bool = True, strip_accents: bool | None = None,
                 chinese_characters: bool = True):
        self.lower_case, self.chinese_characters = lower_case, chinese_characters
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.tokens = read_lines(Path(vocab_file))
        self.vocabulary: dict[str, int] = {}
        for number, token in enumerate(self.tokens):
            if not token or self.vocabulary.setdefault(token, number) != number:
                raise UserError(f"{vocab_file}:{number + 1}: '{token:.30}' is empty or there twice; mend the line")
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        if lacking := [token for token in special if token not in self.vocabulary]:
            raise UserError(f"{vocab_file} lacks {', '.join(lacking)}; give the vocabulary of a BERT-family model")
        self.special_ids = [self.vocabulary[token] for token in special]
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.cache: dict[str, list[tuple[int, int]]] = {}  # what stands between two spaces -> its pieces

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint: vocab.txt, and tokenizer_config.json where there is one. Raises UserError."""
        path, options = Path(directory) / "tokenizer_config.json", {}
        try:
            if os.path.lexists(path):
                options = {**json.loads("\n".join(read_lines(path)))}
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is no JSON object ({error}); get the file again") from None
        keys = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
        for key, default in keys.items():
            if options.setdefault(key, default) not in (True, False, default):
                raise UserError(f"{path}: {key} must be true or false, it is {options[key]!r:.30}; mend it")
        return cls(Path(directory) / "vocab.txt", *(options[key] for key in keys))

    def encode(self, text_a: str, text_b: str | None = None, max_length: int = 128) -> Encoding:
        """[CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP], in at most max_length pieces.

        Texts too long lose pieces at their ends, one at a time, always the longer text. Where both are cut and an odd
        number is left, the one that was longer keeps one more, or text_b if they were equal (as `tokenizers` has it).
        Raises ValueError where max_length has no room for the special tokens.
        """
        a, b = self.pieces(text_a), self.pieces(text_b or "")
        room = max_length - (2 if text_b is None else 3)
        if room < 0:
            raise ValueError(f"max_length {max_length} has no room for the special tokens")
        if len(a) + len(b) > room:
            shorter = min(len(a), len(b), room // 2)
            keep_a, keep_b = (room - shorter, shorter) if len(a) > len(b) else (shorter, room - shorter)
            a, b = a[:keep_a], b[:keep_b]
        first = [(self.cls_id, -1), *a, (self.sep_id, -1)]
        second = [*b, (self.sep_id, -1)] if text_b is not None else []
        return Encoding([piece for piece, _ in first + second], [0] * len(first) + [1] * len(second),
                        [word for _, word in first + second])

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """A text's pieces, each as its id and the number of its word."""
        pieces: list[tuple[int, int]] = []
        for chunk in text.split(" "):
            if chunk not in self.cache:  # seven in eight are: 0.5 s instead of 2 for all of MRPC and CoLA
                words = [self.split_word(word) for word in self.split_text(chunk)]
                self.cache[chunk] = [(piece, number) for number, word in enumerate(words) for piece in word]
            first = pieces[-1][1] + 1 if pieces else 0
            pieces += [(piece, first + number) for piece, number in self.cache[chunk]]
        return pieces

    def split_text(self, text: str) -> list[str]:
        """A text's words: cleaned, normalised, and split at white space and around every punctuation mark."""
        text = "".join(c for c in text if c in "\t\n\r" or c != "\ufffd" and category(c) not in CONTROL)
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
    """B examples, padded to the longest of them."""
    ids: torch.Tensor  # (B, T) int64
    segments: torch.Tensor  # (B, T) int64
    words: torch.Tensor  # (B, T) int64, -1 at special tokens and padding: words >= 0 are the maskable positions
    attention_mask: torch.Tensor  # (B, T) bool, False at padding
    labels: torch.Tensor  # (B,) int64


@dataclass
class EncodedSplit(Batch):
    """All N examples of a split, made once and kept on the device: MRPC's train split takes 9 MB."""
    lengths: list[int]  # N, on the host

    def batch(self, rows: Sequence[int]) -> Batch:
        """The examples of these rows, cut to the longest of them; nothing waits for the device."""
        import torch
        longest = max(self.lengths[row] for row in rows)
        rows = torch.tensor(rows).to(self.ids.device, non_blocking=True)
        padded = (self.ids, self.segments, self.words, self.attention_mask)
        return Batch(*(values[rows, :longest] for values in padded), self.labels[rows])


def encode_split(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int,
                 device: str | torch.device = "cpu") -> EncodedSplit:
    """Tokenise the examples and pad them to the longest."""
    import torch
    encodings = [tokenizer.encode(example.text_a, example.text_b, max_length) for example in examples]
    lengths = [len(encoding.ids) for encoding in encodings]
    longest = max(lengths)

    def pad(rows: list[list[int]], padding: int) -> torch.Tensor:  # (N, T); by way of numpy, in a quarter of the time
        return torch.tensor(numpy.array([row + [padding] * (longest - len(row)) for row in rows]), device=device)

    return EncodedSplit(ids=pad([encoding.ids for encoding in encodings], tokenizer.pad_id),
                        segments=pad([encoding.segments for encoding in encodings], 0),
                        words=pad([encoding.words for encoding in encodings], -1),
                        attention_mask=pad([[1] * length for length in lengths], 0).bool(),
                        labels=torch.tensor([example.label for example in examples], device=device), lengths=lengths)


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
    generator alone, so all maskers have the same.  None, for evaluation: by length, shortest first.
    """
    import torch
    rows = range(len(lengths)) if generator is None else torch.randperm(len(lengths), generator=generator).tolist()
    window = len(rows) + 1 if generator is None else 50 * batch_size
    windows = [sorted(rows[i:i + window], key=lengths.__getitem__) for i in range(0, len(rows), window)]
    batches = [rows[i:i + batch_size] for rows in windows for i in range(0, len(rows), batch_size)]
    if generator is not None:
        batches = [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
    return batches


# ---- Metrics ---------------------------------------------------------------------------------------------------------

def metrics(predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy, F1 of class 1 and Matthews correlation of 0/1 predictions; 0 where undefined, as in GLUE's scorer.

        F1 = 2 TP / (2 TP + FP + FN)       Matthews = (TP TN - FP FN) / sqrt((TP+FP) (TP+FN) (TN+FP) (TN+FN))
    """
    pairs = [*zip(map(int, predictions), map(int, labels), strict=True)]
    tp, tn, fp, fn = (pairs.count(pair) for pair in [(1, 1), (0, 0), (1, 0), (0, 1)])
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return {"accuracy": (tp + tn) / max(len(pairs), 1), "f1": 2 * tp / max(2 * tp + fp + fn, 1),
            "matthews": (tp * tn - fp * fn) / product ** 0.5 if product else 0.0}
