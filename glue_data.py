"""The data: MRPC and CoLA of GLUE, as batches of word pieces. Top to bottom, as data flows:

    readers      load_task                    files -> examples: one or two sentences and a label
    tokenizer    Tokenizer                    sentences -> ids of word pieces, word numbers
    batches      encode_split, epoch_batches  examples -> padded tensors -> batches of like length
    metrics      metrics                      accuracy, F1, Matthews correlation
    fetching     fetch_task, fetch            where the files come from

N examples, B in a batch, T positions, V token types. [A] the abstract, [C] the 2023 code, [D] ours.
"""
from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import string
import unicodedata
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import torch
from torch.nn.utils.rnn import pad_sequence


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


# ---- Readers -------------------------------------------------------------------------------------

MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


@dataclass
class Example:
    text_a: str
    text_b: str | None  # None for CoLA
    label: int  # MRPC: 1 is a paraphrase; CoLA: 1 is acceptable


def task_files(task: str, data_dir: str | Path) -> dict[str, Path]:
    """The two files of a task: their names relative to data_dir -> paths."""
    names = [f"{TASKS[task].folder}/{split}.tsv" for split in SPLITS]
    return {name: Path(data_dir, name) for name in names}


def load_task(task: str, split: str, data_dir: str | Path) -> list[Example]:
    """The examples of "mrpc" or "cola", split "train" or "dev", in the file's order. Tabs separate,
    quotes are ordinary characters. UserError names file and line."""
    path = Path(data_dir, TASKS[task].folder, f"{split}.tsv")
    numbered = enumerate(read_lines(path), 1)
    if task == "mrpc" and next(numbered)[1] != MRPC_HEADER:
        raise UserError(f"{path}:1: the first line must be {MRPC_HEADER!r}; add it")
    columns, label_column = (5, 0) if task == "mrpc" else (4, 1)  # CoLA: source, label, mark, text
    examples = []
    for number, line in numbered:
        fields = line.split("\t")
        wrong = ""
        if len(fields) != columns:
            wrong = f"{len(fields)} columns, not {columns} separated by tabs"
        elif fields[label_column] not in ("0", "1"):
            wrong = f"the label is '{fields[label_column]:.30}', it must be 0 or 1"
        elif not all(text.strip() for text in fields[3:]):
            wrong = "a sentence is empty"
        if wrong:
            raise UserError(f"{path}:{number}: {wrong}; mend or delete the line")
        text_b = fields[4] if task == "mrpc" else None
        examples.append(Example(fields[3], text_b, int(fields[label_column])))
    if not examples:
        raise UserError(f"{path} holds no examples; get it again")
    return examples


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without a BOM; only LF and CRLF end a line. Raises UserError."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8; save the file as UTF-8 text") from error
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def read_bytes(path: str | Path) -> bytes:
    """The content of a file. Raises UserError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path") from error


def sha256_of(path: str | Path) -> str:
    """The hexadecimal sha256 of a file. Raises UserError."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


# ---- Tokenizer -----------------------------------------------------------------------------------

BERT_PARTS = {  # of tokenizer.json
    "model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
OPTIONS = {  # of the Tokenizer -> what tokenizer_config.json calls them
    "lowercase": "do_lower_case", "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars"}
CHINESE = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
                     "\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f])")


@dataclass
class Encoding:
    ids: list[int]
    segments: list[int]  # 0 for [CLS] text_a [SEP], 1 for text_b [SEP]
    words: list[int]  # number of the word within its text; -1 for special tokens


def tokenizer_files(directory: str | Path) -> dict[str, Path]:
    """What Tokenizer.from_pretrained reads: names -> paths. Raises UserError."""
    directory = Path(directory)
    main = "tokenizer.json" if (directory / "tokenizer.json").exists() else "vocab.txt"
    if not (directory / main).exists():
        raise UserError(f"{directory} holds neither tokenizer.json nor vocab.txt; give a directory "
                        "that a BERT-family model was saved to together with its tokenizer")
    names = [main, "tokenizer_config.json"]
    return {name: directory / name for name in names if (directory / name).exists()}


class Tokenizer:
    """BERT's tokenizer: clean a text, split it into words, each word into the longest known pieces.

    Ids are those of the `tokenizers` library, but for characters younger than its Unicode 8, and
    for a capital sigma that ends a word. A "[SEP]" in a text is five ordinary characters.
    """

    def __init__(self, vocabulary: dict[str, int], added_tokens: Sequence[str] = (),
                 lowercase: bool = True, strip_accents: bool | None = None,
                 handle_chinese_chars: bool = True):
        """vocabulary: token -> id, 0 to V - 1.  added_tokens: those of it found whole in a text."""
        self.vocabulary = vocabulary
        self.tokens = sorted(vocabulary, key=vocabulary.__getitem__)  # id -> token
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.handle_chinese_chars = handle_chinese_chars  # each is a word of its own
        self.pad_id, self.unknown_id = vocabulary["[PAD]"], vocabulary["[UNK]"]
        self.cls_id, self.sep_id = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self.mask_id = vocabulary["[MASK]"]
        # Added tokens are looked for in the normalised text, so they are normalised too.
        self.added = {self.normalise(token): vocabulary[token] for token in added_tokens}
        longest_first = sorted(self.added, key=len, reverse=True)
        self.added_pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint. Raises UserError."""
        files = tokenizer_files(directory)
        try:
            vocabulary, added_tokens, options = read_tokenizer(files)
            tokenizer = cls(vocabulary, added_tokens, **options)
        except Exception as error:  # the files can hold anything
            raise UserError(
                f"{directory}: {' and '.join(files)} cannot be read as a BERT tokenizer "
                f"({type(error).__name__}: {error!s:.200}); get the files again") from error
        words = [token for token in vocabulary if not token.startswith("[")]  # without [UNK]
        if "lowercase" not in options and any(word != word.lower() for word in words):
            print_once(f"NOTICE: {directory}: the vocabulary has capital letters, and no file says "
                       "whether texts are lower-cased; they are, as in transformers. For a cased "
                       'model write {"do_lower_case": false} into tokenizer_config.json there')
        return tokenizer

    def encode(self, text_a: str, text_b: str | None = None, max_length: int = 128) -> Encoding:
        """[CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP], in at most max_length pieces.

        Texts too long lose pieces at their ends, one at a time, always from the longer text. Where
        both are cut and an odd number is left, the longer one keeps one more; text_b, if equal.
        """
        a, b = self.pieces(text_a), self.pieces(text_b or "")
        room = max_length - (2 if text_b is None else 3)
        if len(a) + len(b) > room:
            shorter = min(len(a), len(b), room // 2)
            keep_a = room - shorter if len(a) > len(b) else shorter
            a, b = a[:keep_a], b[:room - keep_a]
        first = [(self.cls_id, -1), *a, (self.sep_id, -1)]
        second = [] if text_b is None else [*b, (self.sep_id, -1)]
        return Encoding(ids=[piece for piece, _ in first + second],
                        segments=[0] * len(first) + [1] * len(second),
                        words=[word for _, word in first + second])

    def normalise(self, text: str) -> str:
        """Drop control characters, set Chinese ones apart, strip accents, lower-case."""
        text = "".join(c for c in text if c in "\t\n\r" or not is_control(c))
        if self.handle_chinese_chars:
            text = CHINESE.sub(r" \1 ", text)
        if self.strip_accents:
            text = unicodedata.normalize("NFD", text)
            text = "".join(c for c in text if unicodedata.category(c) != "Mn")
        return text.lower() if self.lowercase else text

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """A text's pieces, each as its id and the number of its word. Words end at white space;
        punctuation marks and added tokens are words of their own."""
        text = self.normalise(text)
        words = []  # each as a list of ids
        for part in self.added_pattern.split(text) if self.added else [text]:
            if part in self.added:
                words.append([self.added[part]])
            else:
                spaced = "".join(f" {c} " if is_punctuation(c) else c for c in part)
                words += [self.split_word(word) for word in spaced.split()]
        return [(piece, number) for number, word in enumerate(words) for piece in word]

    def split_word(self, word: str) -> list[int]:
        """WordPiece: the longest known piece, again and again; [UNK] for the word if that fails."""
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


@functools.cache
def print_once(line: str) -> None:
    print(line, flush=True)


def read_tokenizer(files: dict[str, Path]) -> tuple[dict, list, dict]:
    """Vocabulary, added tokens, and the options that the files speak of. Raises any exception."""
    config = {}
    if "tokenizer_config.json" in files:
        config = json.loads(files["tokenizer_config.json"].read_bytes())
    if "tokenizer.json" in files:
        content = json.loads(files["tokenizer.json"].read_bytes())
        for part, kind in BERT_PARTS.items():
            found = content[part].get("type", kind)  # old files do not name the model's
            if found != kind:
                raise ValueError(f"its {part} is {found}, only {kind} is known here")
        vocabulary, added = content["model"]["vocab"], content["added_tokens"]
        options = {option: content["normalizer"][option] for option in OPTIONS}
    else:
        tokens = "\n".join(read_lines(files["vocab.txt"])).rstrip("\n").split("\n")
        vocabulary = {token: number for number, token in enumerate(tokens)}
        decoder = config.get("added_tokens_decoder", {})  # id, a string -> token
        added = [entry | {"id": int(number)} for number, entry in decoder.items()]
        options = {}
    for option, key in OPTIONS.items():  # tokenizer_config.json has the last word
        if config.get(key) is not None:
            options[option] = config[key]
        if options.get(option) not in (None, True, False):
            raise ValueError(f"{key} is {options[option]!r:.40}, it must be true or false")
    vocabulary |= {entry["content"]: entry["id"] for entry in added}
    ids = sorted(vocabulary.values())
    if ids != list(range(len(ids))) or set(map(type, ids)) != {int}:
        raise ValueError("its ids are not 0, 1, 2 and so on: is a token there twice?")
    return vocabulary, [entry["content"] for entry in added if not entry["special"]], options


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
        return Batch(ids=self.ids[rows, :longest],
                     segments=self.segments[rows, :longest],
                     words=self.words[rows, :longest],
                     attention_mask=self.attention_mask[rows, :longest],
                     labels=self.labels[rows])


def encode_split(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int,
                 device: str = "cpu") -> EncodedSplit:
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
        lengths=lengths)


def token_frequency(split: EncodedSplit, vocabulary_size: int) -> torch.Tensor:
    """(V,) float64: each token type's share of the maskable positions. [D]"""
    maskable = split.ids[split.words >= 0]
    return torch.bincount(maskable, minlength=vocabulary_size).double() / len(maskable)


def notice_unknown(split: EncodedSplit, tokenizer: Tokenizer, directory: str | Path) -> None:
    """A vocabulary that was cut short looks like any other, but for the words that it lacks."""
    unknown = split.ids[split.words >= 0] == tokenizer.unknown_id
    share = unknown.double().mean().item()
    if share > 0.01:
        print_once(f"NOTICE: {directory}: {share:.1%} of the training pieces are [UNK], words that "
                   "its vocabulary cannot spell; is it whole, and of this language?")


def epoch_batches(lengths: Sequence[int], batch_size: int,
                  generator: torch.Generator | None) -> list[list[int]]:
    """One epoch's batches, as lists of rows: every example exactly once.

    With a generator (on the CPU), for training: all examples are shuffled; each window of 50
    batches is sorted by length, for next to no padding [D: the 2023 code only shuffles]; the
    batches are shuffled. None, for evaluation: by length, shortest first.
    """
    def split(rows: list[int], size: int) -> list[list[int]]:
        return [rows[i:i + size] for i in range(0, len(rows), size)]

    if generator is None:
        return split(sorted(range(len(lengths)), key=lengths.__getitem__), batch_size)
    rows = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for window in split(rows, 50 * batch_size):
        batches += split(sorted(window, key=lengths.__getitem__), batch_size)
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
        "matthews": (tp * tn - fp * fn) / product ** 0.5 if product else 0.0}


# ---- Fetching ------------------------------------------------------------------------------------

HOST = "https://dl.fbaipublicfiles.com/"
DOWNLOADS = {  # task -> {address: sha256}
    "mrpc": {
        "senteval/senteval_data/msr_paraphrase_train.txt":
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
        "glue/data/mrpc_dev_ids.tsv":
            "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"},
    "cola": {
        "glue/data/CoLA.zip":
            "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"},
}
SILENCE = 30  # seconds without a byte, after which a server is given up


def environment_path(variable: str, otherwise: str | Path) -> Path:
    """The directory that an environment variable names, else another; ~ is the home directory."""
    return Path(os.path.expanduser(os.environ.get(variable) or otherwise))


def cache_dir() -> Path:
    """Of downloads: $TYPHOON_CACHE, else $XDG_CACHE_HOME/typhoon, else ~/.cache/typhoon."""
    shared = environment_path("XDG_CACHE_HOME", "~/.cache")
    return environment_path("TYPHOON_CACHE", shared / "typhoon")


def fetch_task(task: str) -> Path:
    """The directory in our cache with MRPC/ or CoLA/, downloaded if need be. Raises UserError."""
    root = cache_dir() / "glue"
    if not all(path.exists() for path in task_files(task, root).values()):
        folder = root / TASKS[task].folder
        for address, sha256 in DOWNLOADS[task].items():
            fetch(HOST + address, folder / Path(address).name, sha256)
        unpack(task, folder)
    return root


def fetch(url: str, destination: str | Path, sha256: str | None = None) -> Path:
    """Download url to destination, unless something is there. DownloadError: it is not there now,
    and neither is anything else."""
    destination = Path(destination)
    if os.path.exists(destination):
        return destination
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise OSError("HF_HUB_OFFLINE is set")
        print(f"downloading {url}", flush=True)
        with urlopen(url, timeout=SILENCE) as response:
            content = response.read()  # raises where less comes than was announced
        if content[:100].strip()[:1] in (b"", b"<"):
            raise OSError("nothing, or a web page, came in its place")
        if sha256 and hashlib.sha256(content).hexdigest() != sha256:
            raise OSError(f"its sha256 is not {sha256}")
        write_whole(destination, content)
    except Exception as error:  # networks, proxies and disks fail in more ways than can be listed
        raise DownloadError(
            f"{url} cannot be downloaded to {destination} ({error!s:.200}); check the network, the "
            "proxy variables and the disk, or put the file there by hand") from error
    return destination


def write_whole(path: Path, content: bytes) -> None:
    """The file, and the directories that it needs, appear when it is whole, or not at all."""
    existing = next(folder for folder in path.parents if folder.exists())
    with TemporaryDirectory(dir=existing, prefix="typhoon-partial-") as temporary:
        partial = Path(temporary, path.name)
        partial.write_bytes(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(path)


def unpack(task: str, folder: Path) -> None:
    """Make train.tsv and dev.tsv from what was downloaded. Raises UserError.

    MRPC: a row is a dev row when its two ids, in that order, are a row of mrpc_dev_ids.tsv.
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
        for split, content in contents.items():
            write_whole(folder / f"{split}.tsv", content)
    except Exception as error:  # a damaged archive alone fails in many ways
        raise UserError(f"{folder}: what was downloaded cannot be unpacked ({error!s:.200}); "
                        "delete it and try again") from error
