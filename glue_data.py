"""The data: MRPC and CoLA of GLUE, as batches of word pieces. Read it top to bottom, as data flows:

    fetching     find_task, fetch             where are the files, and are they whole?
    readers      load_task                    files -> examples: one or two sentences and a label
    tokenizer    Tokenizer                    sentences -> ids of word pieces, word numbers
    batches      encode_split, epoch_batches  examples -> padded tensors -> batches of like length
    metrics      metrics                      accuracy, F1, Matthews correlation

N examples, B in a batch, T positions, V token types.
[A] the abstract, [C] the authors' 2023 code, [D] our choice.
"""
from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import socket
import string
import unicodedata
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlretrieve

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm


class UserError(Exception):
    """What only the user can put right: what is wrong, where; what to do. One printable line."""

    def __init__(self, message: str):
        printable = [c if c.isprintable() else ascii(c)[1:-1] for c in message]
        super().__init__("".join(printable))


class DownloadError(UserError):
    """A file could not be had."""


@dataclass(frozen=True)
class Task:
    folder: str
    metric: str  # the one to report [A]
    selection_metric: str  # the one that chooses the classifier's epoch [C]


TASKS = {
    "mrpc": Task(folder="MRPC", metric="f1", selection_metric="accuracy"),
    "cola": Task(folder="CoLA", metric="matthews", selection_metric="matthews"),
}
SPLITS = ("train", "dev")


# ---- Fetching ------------------------------------------------------------------------------------

HOST = "https://dl.fbaipublicfiles.com/"
DOWNLOADS = {  # task -> {address: sha256}
    "mrpc": {
        "senteval/senteval_data/msr_paraphrase_train.txt":
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
        "glue/data/mrpc_dev_ids.tsv":
            "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
    },
    "cola": {
        "glue/data/CoLA.zip":
            "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
    },
}


def cache_dir() -> Path:
    """Of downloads: $TYPHOON_CACHE, else $XDG_CACHE_HOME/typhoon, else ~/.cache/typhoon."""
    if os.environ.get("TYPHOON_CACHE"):
        return Path(os.environ["TYPHOON_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "typhoon")


def find_task(task: str, data_dir: str | Path | None = None) -> Path:
    """The directory that holds MRPC/ or CoLA/: data_dir, or our cache. Fetches what it lacks.

    A directory of the user's that holds one of the two files is left as it is: completed, it would
    be half somebody's own data and half GLUE's.  Raises UserError.
    """
    root = cache_dir() / "glue" if data_dir is None else Path(data_dir)
    folder = root / TASKS[task].folder
    present = [os.path.exists(folder / f"{split}.tsv") for split in SPLITS]
    ours_to_complete = data_dir is None and not all(present)
    if ours_to_complete or os.path.isdir(root) and not any(present):
        for address, sha256 in DOWNLOADS[task].items():
            fetch(HOST + address, folder / address.rpartition("/")[2], sha256)
        unpack(task, folder)
    task_files(task, root)
    return root


def fetch(
    url: str, destination: str | Path, sha256: str | None = None, timeout: float = 30
) -> Path:
    """Download url to destination, unless something is there.

    Under that name never stands anything but the whole, checked file: it is downloaded into a
    temporary directory beside it.  timeout: seconds of silence.  Raises DownloadError.
    """
    destination = Path(destination)
    if os.path.exists(destination):  # Path.exists raises where a name is too long
        return destination
    default_timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout)
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise OSError("HF_HUB_OFFLINE is set")
        destination.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=destination.parent, prefix="partial-") as folder:
            path = Path(folder, destination.name)
            download(url, path)
            content = path.read_bytes()
            if content[:100].strip()[:1] in (b"", b"<"):
                raise OSError("nothing, or a web page, came in its place")
            if destination.suffix == ".json":
                json.loads(content)
            if sha256 and hashlib.sha256(content).hexdigest() != sha256:
                raise OSError(f"its sha256 is not {sha256}")
            path.replace(destination)
    except Exception as error:  # networks, proxies and disks fail in more ways than can be listed
        raise DownloadError(
            f"{url} cannot be downloaded to {destination} ({error!s:.200}); check the network, the "
            "proxy variables and the disk, or put the file there by hand"
        ) from error
    finally:
        socket.setdefaulttimeout(default_timeout)
    return destination


def download(url: str, path: Path) -> None:
    """urlretrieve with a progress bar.

    It raises where the body is shorter than announced; torch.hub's download does not notice that.
    """
    with tqdm(desc=path.name, unit="B", unit_scale=True, disable=None) as bar:

        def progress(blocks: int, block_size: int, size: int) -> None:
            bar.total = size if size > 0 else None
            bar.update(blocks * block_size - bar.n)

        urlretrieve(url, path, progress)


def unpack(task: str, folder: Path) -> None:
    """Make {train,dev}.tsv from what was downloaded. Raises UserError.

    CoLA: two members of CoLA.zip, by their exact names.  MRPC: a row of msr_paraphrase_train.txt is
    a dev row when its two ids, in that order, are a row of mrpc_dev_ids.tsv.
    """
    try:
        if task == "cola":
            with zipfile.ZipFile(folder / "CoLA.zip") as archive:
                contents = {split: archive.read(f"CoLA/{split}.tsv") for split in SPLITS}
        else:
            header, *rows = read_lines(folder / "msr_paraphrase_train.txt")
            dev_ids = {tuple(line.split()) for line in read_lines(folder / "mrpc_dev_ids.tsv")}
            lines = {"train": [header], "dev": [header]}
            for row in rows:
                ids = tuple(row.split("\t")[1:3])
                lines["dev" if ids in dev_ids else "train"].append(row)
            contents = {split: "\n".join(lines[split]).encode() for split in SPLITS}
        with TemporaryDirectory(dir=folder, prefix="partial-") as partial:
            for split, content in contents.items():
                Path(partial, split).write_bytes(content)
                Path(partial, split).replace(folder / f"{split}.tsv")
    except Exception as error:  # a damaged archive alone fails in many ways
        raise UserError(
            f"{folder}: what was downloaded cannot be unpacked ({error!s:.200}); delete it and "
            "try again"
        ) from error


# ---- Readers -------------------------------------------------------------------------------------

MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


@dataclass
class Example:
    text_a: str
    text_b: str | None  # None for CoLA
    label: int  # MRPC: 1 is a paraphrase; CoLA: 1 is acceptable


def task_files(task: str, data_dir: str | Path) -> dict[str, Path]:
    """The two files of a task: their names relative to data_dir -> paths. Raises UserError."""
    names = [f"{TASKS[task].folder}/{split}.tsv" for split in SPLITS]
    lacking = [name for name in names if not os.path.exists(Path(data_dir, name))]
    if lacking:
        raise UserError(
            f"{data_dir} does not hold {' and '.join(lacking)}; give --data-dir a directory in "
            "GLUE's layout, or leave it out"
        )
    return {name: Path(data_dir, name) for name in names}


def load_task(task: str, split: str, data_dir: str | Path) -> list[Example]:
    """The examples of task "mrpc" or "cola", split "train" or "dev", in the file's order.

    MRPC: a header; columns Quality, #1 ID, #2 ID, #1 String, #2 String.  CoLA: no header; columns
    source, label, mark, sentence.  Tabs separate, quotes are ordinary characters.
    Raises UserError naming file and line.
    """
    path = task_files(task, data_dir)[f"{TASKS[task].folder}/{split}.tsv"]
    lines = read_lines(path)
    header = [MRPC_HEADER] if task == "mrpc" else []
    if lines[:len(header)] != header:
        raise UserError(f"{path}:1: the first line must be {MRPC_HEADER!r}; add it")
    if lines == header:
        raise UserError(f"{path} holds no examples; get it again")
    examples = []
    for number, line in enumerate(lines[len(header):], len(header) + 1):
        try:
            examples.append(parse_row(task, line.split("\t")))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; mend or delete the line") from error
    return examples


def parse_row(task: str, fields: list[str]) -> Example:
    """An example from the fields of a line. Raises ValueError saying what is wrong with them."""
    columns = 5 if task == "mrpc" else 4
    if len(fields) != columns:
        raise ValueError(f"{len(fields)} columns, not {columns} separated by tabs")
    if task == "mrpc":
        label, _, _, *texts = fields
    else:
        _, label, _, *texts = fields
    if label not in ("0", "1"):
        raise ValueError(f"the label is '{label:.30}', it must be 0 or 1")
    if not all(text.strip() for text in texts):
        raise ValueError("a sentence is empty")
    return Example(texts[0], texts[1] if task == "mrpc" else None, int(label))


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without a BOM; only LF and CRLF end a line. Raises UserError."""
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8; save the file as UTF-8 text") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]  # what ends the last line begins no new one


def read_bytes(path: str | Path) -> bytes:
    """The content of a file. Raises UserError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror
        raise UserError(f"{path} cannot be read ({reason}); check that it is there") from error


def sha256_of(path: str | Path) -> str:
    """The hexadecimal sha256 of a file. Raises UserError."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


# ---- Tokenizer -----------------------------------------------------------------------------------

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_PARTS = {  # of tokenizer.json
    "model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
CONFIG_OPTIONS = {  # of tokenizer_config.json -> the normalizer's
    "do_lower_case": "lowercase", "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars"}
CHINESE = re.compile(
    "([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f])")


@dataclass
class Encoding:
    ids: list[int]
    segments: list[int]  # 0 for [CLS] text_a [SEP], 1 for text_b [SEP]
    words: list[int]  # number of the word within its text; -1 for special tokens


def tokenizer_files(directory: str | Path) -> dict[str, Path]:
    """The files that Tokenizer.from_pretrained reads, by name. Raises UserError.

    tokenizer.json, which is whole by itself and what transformers 4 and 5 read, else vocab.txt; and
    tokenizer_config.json where it is there, whose word on lower-casing and the like comes first.
    """
    directory = Path(directory)
    names = ["tokenizer.json" if os.path.exists(directory / "tokenizer.json") else "vocab.txt"]
    if not os.path.exists(directory / names[0]):
        raise UserError(
            f"{directory} holds neither tokenizer.json nor vocab.txt; give a directory that a "
            "BERT-family model was saved to together with its tokenizer"
        )
    if os.path.lexists(directory / "tokenizer_config.json"):  # a broken link is not taken for none
        names.append("tokenizer_config.json")
    return {name: directory / name for name in names}


class Tokenizer:
    """BERT's tokenizer: clean a text, split it into words, each word into the longest known pieces.

    As Google's, with Python's tables of Unicode. Ids are those of the `tokenizers` library, but for
    characters younger than its tables (Unicode 8), and for a capital sigma that ends a word.
    Special tokens in a text, such as "[SEP]", are ordinary characters here: no text can forge one.
    """

    def __init__(
        self, vocabulary: dict[str, int], added_tokens: Sequence[str] = (), lowercase: bool = True,
        strip_accents: bool | None = None, handle_chinese_chars: bool = True,
        clean_text: bool = True,
    ):
        """vocabulary: token -> id, of 0 to V - 1.  added_tokens: those of it found whole in a text.

        The options are those of a tokenizer.json: strip_accents None is as lowercase,
        handle_chinese_chars makes each a word, clean_text drops control characters.
        """
        self.vocabulary = vocabulary
        self.tokens = sorted(vocabulary, key=vocabulary.__getitem__)  # id -> token
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.handle_chinese_chars = handle_chinese_chars
        self.clean_text = clean_text
        special_ids = [vocabulary[token] for token in SPECIAL_TOKENS]
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = special_ids
        # Added tokens are looked for in the normalised text, so they are normalised too.
        self.added = {self.normalise(token): vocabulary[token] for token in added_tokens}
        longest_first = sorted(self.added, key=len, reverse=True)
        self.added_pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint, from the files that tokenizer_files names.

        A vocabulary with capital letters of which no file says whether texts are to be lower-cased
        is read as uncased, as transformers does, and one line is printed.  Raises UserError.
        """
        files = tokenizer_files(directory)
        try:
            vocabulary, added_tokens, options = read_tokenizer(files)
            tokenizer = cls(vocabulary, added_tokens, **options)
        except Exception as error:  # the files can hold anything
            raise UserError(
                f"{directory}: {' and '.join(files)} cannot be read as a BERT tokenizer "
                f"({type(error).__name__}: {error!s:.200}); get the files again"
            ) from error
        if "lowercase" not in options and any(map(has_capitals, vocabulary)):
            print(
                f"NOTICE: {directory}: the vocabulary has capital letters, and no file says "
                "whether texts are lower-cased; they are, as in transformers. For a cased model "
                'write {"do_lower_case": false} into tokenizer_config.json there'
            )
        return tokenizer

    def encode(self, text_a: str, text_b: str | None = None, max_length: int = 128) -> Encoding:
        """[CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP], in at most max_length pieces.

        Texts too long lose pieces at their ends, one at a time, always from the longer text. Where
        both are cut and an odd number is left, the text that was longer keeps one more, or text_b
        if they were equal (as in the `tokenizers` library).
        Raises ValueError where max_length has no room for the special tokens.
        """
        a, b = self.pieces(text_a), self.pieces(text_b or "")
        room = max_length - (2 if text_b is None else 3)
        if room < 0:
            raise ValueError(f"max_length {max_length} has no room for the special tokens")
        if len(a) + len(b) > room:
            shorter = min(len(a), len(b), room // 2)
            keep_a = room - shorter if len(a) > len(b) else shorter
            a, b = a[:keep_a], b[:room - keep_a]
        first = [(self.cls_id, -1), *a, (self.sep_id, -1)]
        second = [] if text_b is None else [*b, (self.sep_id, -1)]
        return Encoding(
            ids=[piece for piece, _ in first + second],
            segments=[0] * len(first) + [1] * len(second),
            words=[word for _, word in first + second],
        )

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """A text's pieces, each as its id and the number of its word."""
        return [
            (piece, number)
            for number, word in enumerate(self.split_text(self.normalise(text)))
            for piece in self.split_word(word)
        ]

    def normalise(self, text: str) -> str:
        """Drop control characters, set Chinese ones apart, strip accents, lower-case."""
        if self.clean_text:
            text = "".join(c for c in text if c in "\t\n\r" or not is_control(c))
        if self.handle_chinese_chars:
            text = CHINESE.sub(r" \1 ", text)
        if self.strip_accents:
            text = unicodedata.normalize("NFD", text)
            text = "".join(c for c in text if unicodedata.category(c) != "Mn")
        return text.lower() if self.lowercase else text

    def split_text(self, text: str) -> list[str]:
        """A normalised text's words, split around added tokens, punctuation and white space."""
        words = []
        for part in self.added_pattern.split(text) if self.added else [text]:
            if part in self.added:
                words.append(part)
            else:
                words += "".join(f" {c} " if is_punctuation(c) else c for c in part).split()
        return words

    def split_word(self, word: str) -> list[int]:
        """WordPiece: the longest known piece, again and again; [UNK] for the word if that fails."""
        if word in self.added:
            return [self.added[word]]
        if len(word) > 100:
            return [self.unknown_id]
        ids, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self.vocabulary.get(prefix + word[start:end])
                if piece is not None:
                    break
            else:
                return [self.unknown_id]
            ids.append(piece)
            start = end
        return ids


def is_control(character: str) -> bool:
    """Control, format, private use, surrogates, and the mark for what could not be decoded."""
    return unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs") or character == "\ufffd"


def is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def has_capitals(token: str) -> bool:
    return token != token.lower() and not token.startswith("[")  # [UNK] and [unused1] do not count


def read_tokenizer(files: dict[str, Path]) -> tuple[dict, list, dict]:
    """Tokenizer's arguments: vocabulary, added tokens, and those options that the files speak of.

    Raises an exception of any kind where they are not a BERT tokenizer's.
    """
    config, options = {}, {}
    if "tokenizer_config.json" in files:
        config = json.loads(read_bytes(files["tokenizer_config.json"]))
    if "vocab.txt" in files:
        tokens = "\n".join(read_lines(files["vocab.txt"])).rstrip("\n").split("\n")
        vocabulary = {token: number for number, token in enumerate(tokens)}
        added = config.get("added_tokens_decoder", {}).items()
        added = [{**entry, "id": int(number)} for number, entry in added]
    else:
        content = json.loads(read_bytes(files["tokenizer.json"]))
        for part, kind in BERT_PARTS.items():
            found = content[part].get("type", kind)  # old files do not name the model's
            if found != kind:
                raise ValueError(f"its {part} is {found}, only {kind} is known here")
        options = {key: value for key, value in content["normalizer"].items() if key != "type"}
        vocabulary = dict(content["model"]["vocab"])
        added = content["added_tokens"]
    for key, option in CONFIG_OPTIONS.items():
        if config.get(key) is not None:
            options[option] = config[key]
    vocabulary |= {entry["content"]: entry["id"] for entry in added}

    if not all(value in (True, False, None) for value in options.values()):
        raise ValueError(f"its options must be true, false or null: {options}")
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError("its ids are not 0, 1, 2 and so on: is a token there twice?")
    lacking = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if lacking:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    ordinary = [entry["content"] for entry in added if not entry["special"]]
    return vocabulary, ordinary, options


# ---- Batches -------------------------------------------------------------------------------------

@dataclass
class Batch:
    """B examples, padded to the longest of them. The maskable positions are those of words >= 0."""
    ids: torch.Tensor  # (B, T) int64
    segments: torch.Tensor  # (B, T) int64
    words: torch.Tensor  # (B, T) int64, -1 at special tokens and padding
    attention_mask: torch.Tensor  # (B, T) bool, False at padding
    labels: torch.Tensor  # (B,) int64


@dataclass
class EncodedSplit(Batch):
    """All N examples of a split, made once and kept on the device (MRPC's train split: 9 MB)."""
    lengths: list[int]  # N, on the host

    def batch(self, rows: Sequence[int]) -> Batch:
        """The examples of these rows, cut to the longest of them; nothing waits for the device."""
        longest = max(self.lengths[row] for row in rows)
        rows = torch.tensor(rows).to(self.ids.device, non_blocking=True)  # (B,)
        return Batch(
            ids=self.ids[rows, :longest],
            segments=self.segments[rows, :longest],
            words=self.words[rows, :longest],
            attention_mask=self.attention_mask[rows, :longest],
            labels=self.labels[rows],
        )


def encode_split(
    examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, device: str = "cpu"
) -> EncodedSplit:
    """Tokenise the examples and pad them to the longest."""
    encodings = [tokenizer.encode(e.text_a, e.text_b, max_length) for e in examples]
    lengths = [len(encoding.ids) for encoding in encodings]

    def pad(rows: list[list[int]], padding: int) -> torch.Tensor:  # (N, T)
        tensors = [torch.tensor(row) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=padding).to(device)

    return EncodedSplit(
        ids=pad([encoding.ids for encoding in encodings], tokenizer.pad_id),
        segments=pad([encoding.segments for encoding in encodings], 0),
        words=pad([encoding.words for encoding in encodings], -1),
        attention_mask=pad([[True] * length for length in lengths], False),
        labels=torch.tensor([example.label for example in examples], device=device),
        lengths=lengths,
    )


def token_frequency(split: EncodedSplit, vocabulary_size: int) -> torch.Tensor:
    """(V,) float64: each token type's share of the maskable positions [D]. Raises UserError."""
    maskable = split.ids[split.words >= 0]
    if not len(maskable):
        raise UserError("the training sentences hold no word to mask; check the data files")
    return torch.bincount(maskable, minlength=vocabulary_size).double() / len(maskable)


def epoch_batches(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator | None
) -> list[list[int]]:
    """One epoch's batches, as lists of rows: every example exactly once.

    With a generator (on the CPU), for training: all examples are shuffled; each window of 50
    batches is sorted by length; the batches are shuffled. So a batch holds sentences of like
    length, and next to no padding. [D: the 2023 code shuffles only, and pads what comes together.]
    The order depends on the lengths and the generator alone, so all maskers have the same.
    None, for evaluation: by length, shortest first.
    """
    if generator is None:
        rows = sorted(range(len(lengths)), key=lengths.__getitem__)
        return [rows[i:i + batch_size] for i in range(0, len(rows), batch_size)]

    rows = torch.randperm(len(lengths), generator=generator).tolist()
    window = 50 * batch_size
    batches = []
    for start in range(0, len(rows), window):
        like_length = sorted(rows[start:start + window], key=lengths.__getitem__)
        for i in range(0, len(like_length), batch_size):
            batches.append(like_length[i:i + batch_size])
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in order]


# ---- Metrics -------------------------------------------------------------------------------------

def metrics(predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy, F1 of class 1 and Matthews correlation of 0/1 predictions; 0 where undefined.

        F1       = 2 TP / (2 TP + FP + FN)
        Matthews = (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN))
    """
    pairs = [*zip(map(int, predictions), map(int, labels), strict=True)]
    tp, tn = pairs.count((1, 1)), pairs.count((0, 0))
    fp, fn = pairs.count((1, 0)), pairs.count((0, 1))
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return {
        "accuracy": (tp + tn) / max(len(pairs), 1),
        "f1": 2 * tp / max(2 * tp + fp + fn, 1),
        "matthews": (tp * tn - fp * fn) / product ** 0.5 if product else 0.0,
    }
