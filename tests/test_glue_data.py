"""The data: readers, tokenizer, batches and metrics (downloads are tested in test_download.py)."""
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import glue_data
import pytest
import tiny
import torch
from glue_data import Example, Tokenizer, UserError, load_task

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tokenizer.json").read_text(encoding="ascii"))
HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
PAIRS = [("1", "10", "20", 'He said "yes.', "She said yes."), ("0", "11", "21", "It rains.", "It's dry."),
         ("1", "20", "10", "A storm came.", "There came a storm.")]
MRPC = HEADER + "".join("\t".join(row) + "\n" for row in PAIRS)
COLA = "gj04\t1\t\tThe wind blew.\nbc01\t0\t*\tWind the blew.\n"


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path, {"MRPC/train.tsv": MRPC, "MRPC/dev.tsv": MRPC, "CoLA/train.tsv": COLA, "CoLA/dev.tsv": COLA})


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("vocabulary"),
                 {"vocab.txt": "".join(token + "\n" for token in GOLDEN["vocabulary"])}) / "vocab.txt"


def assert_one_sentence(error: UserError, *fragments: str) -> None:
    text = str(error)
    assert text.isprintable() and "; " in text and len(text) < 1000, text
    for fragment in fragments:
        assert fragment in text, text


# ---- Readers ---------------------------------------------------------------------------------------------------------

def test_reads_both_tasks(data):
    examples = load_task("mrpc", "train", data)
    assert examples[0] == Example('He said "yes.', "She said yes.", 1)
    assert [example.label for example in examples] == [1, 0, 1]
    assert load_task("cola", "dev", data) == [Example("The wind blew.", None, 1), Example("Wind the blew.", None, 0)]
    for task, split in (("mrpc", "test"), ("cola", None), ("rte", "dev")):
        with pytest.raises(UserError, match="no split"):
            load_task(task, split, data)
    assert list(glue_data.task_files("mrpc", data)) == ["MRPC/train.tsv", "MRPC/dev.tsv"]


@pytest.mark.parametrize("ids_name", ["dev_ids.tsv", "mrpc_dev_ids.tsv"])
def test_reads_mrpc_from_its_source(tmp_path, ids_name):
    """A pair is dev when its ids stand in the ids file in the same order: 20, 10 is not 10, 20."""
    write(tmp_path, {"MRPC/msr_paraphrase_train.txt": MRPC, f"MRPC/{ids_name}": "10\t20\n"})
    assert [example.text_a for example in load_task("mrpc", "dev", tmp_path)] == ['He said "yes.']
    assert [example.text_a for example in load_task("mrpc", "train", tmp_path)] == ["It rains.", "A storm came."]
    assert list(glue_data.task_files("mrpc", tmp_path)) == ["MRPC/msr_paraphrase_train.txt", f"MRPC/{ids_name}"]


@pytest.mark.parametrize("change", [
    lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n"), lambda text: text.removesuffix("\n"),
    lambda text: "\ufeff" + text.replace("\n", "\r\n")], ids=["BOM", "CRLF", "no last newline", "BOM and CRLF"])
def test_bom_crlf_and_missing_last_newline_are_simply_read(data, change):
    expected = {task: load_task(task, "train", data) for task in ("mrpc", "cola")}
    write(data, {"MRPC/train.tsv": change(MRPC), "CoLA/train.tsv": change(COLA)})
    assert {task: load_task(task, "train", data) for task in ("mrpc", "cola")} == expected


def test_only_newlines_end_lines_and_quotes_are_characters(data):
    text = 'a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g " h \' \rk'
    write(data, {"CoLA/train.tsv": f'"x"\t1\t"\t{text}\n"y\t0\t\t"z\n'})
    assert [example.text_a for example in load_task("cola", "train", data)] == [text, '"z']


MALFORMED = {  # file, content, what the error must say
    "too few columns": ("CoLA/train.tsv", COLA + "gj04\t1\tThe wind.\n", ["train.tsv:3:", "3 columns"]),
    "too many columns": ("MRPC/dev.tsv", MRPC + "1\t2\t3\ta\tb\tc\n", ["dev.tsv:5:", "6 columns"]),
    "blank line": ("CoLA/train.tsv", COLA + "\n" + COLA, ["train.tsv:3:", "1 columns"]),
    "label of MRPC": ("MRPC/dev.tsv", MRPC + "2\t2\t3\ta\tb\n", ["dev.tsv:5:", "'2'", "0 or 1"]),
    "label of CoLA": ("CoLA/train.tsv", "x\tone\t\ta\n", ["train.tsv:1:", "'one'"]),
    "odd label": ("CoLA/train.tsv", "x\t\x1b[31m\u2028\r1\t\ta\n", ["train.tsv:1:", "\\x1b[31m\\u2028\\r1"]),
    "empty label": ("CoLA/train.tsv", "x\t\t\ta\n", ["train.tsv:1:", "0 or 1"]),
    "long label": ("CoLA/train.tsv", f"x\t{'1' * 5000}\t\ta\n", ["train.tsv:1:"]),
    "empty sentence": ("CoLA/train.tsv", COLA + "x\t1\t\t \n", ["train.tsv:3:", "empty"]),
    "empty second sentence": ("MRPC/train.tsv", MRPC + "1\t2\t3\ta\t\n", ["train.tsv:5:", "empty"]),
    "header of CoLA": ("CoLA/train.tsv", "source\tlabel\tmark\tsentence\n" + COLA, ["train.tsv:1:", "'label'"]),
    "no header": ("MRPC/train.tsv", MRPC.removeprefix(HEADER), ["train.tsv:1:", "#1 String"]),
    "only the header": ("MRPC/train.tsv", HEADER, ["train.tsv holds no examples"]),
    "empty": ("CoLA/train.tsv", "", ["train.tsv holds no examples"]),
    "empty MRPC": ("MRPC/dev.tsv", "", ["dev.tsv holds no examples"]),
    "only a BOM": ("CoLA/train.tsv", b"\xef\xbb\xbf", ["train.tsv:1:", "columns"]),
    "Latin-1": ("CoLA/train.tsv", COLA.encode() + b"x\t1\t\tcaf\xe9\n", ["train.tsv:3:", "byte 9", "UTF-8"]),
    "UTF-16": ("CoLA/train.tsv", COLA.encode("utf-16"), ["train.tsv:1:", "UTF-8"]),
    "surrogate": ("CoLA/train.tsv", b"x\t1\t\t\xed\xa0\x80\n", ["train.tsv:1:", "UTF-8"]),
    "NUL": ("MRPC/train.tsv", MRPC.replace("rains", "ra\0ins"), ["train.tsv:3:", "NUL"]),
    "10 MB line": ("CoLA/train.tsv", COLA + "x\t1\t\t" + "a" * 10_000_000, ["train.tsv:3:", "bytes"]),
    "binary": ("CoLA/train.tsv", bytes(range(256)) * 10, ["train.tsv:1:"]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_data_is_one_sentence_with_file_and_line(data, case):
    name, content, fragments = MALFORMED[case]
    write(data, {name: content})
    with pytest.raises(UserError) as caught:
        load_task(name[:4].lower(), Path(name).stem, data)
    assert_one_sentence(caught.value, *fragments)


@pytest.mark.parametrize("ids, fragments", [
    ("10\t20\n11\t21\n10\t20\n", ["dev_ids.tsv:3:", "earlier line"]), ("10\t20\n7\t8\n", ["dev_ids.tsv:2:", "no pair"]),
    ("20\t11\n", ["dev_ids.tsv:1:"]), ("10\n", ["dev_ids.tsv:1:", "1 columns"]), ("", ["dev_ids.tsv holds no"]),
    ("10\t20\n11\t21\n20\t10\n", ["every pair"])])
def test_malformed_ids(tmp_path, ids, fragments):
    write(tmp_path, {"MRPC/msr_paraphrase_train.txt": MRPC, "MRPC/dev_ids.tsv": ids})
    with pytest.raises(UserError) as caught:
        load_task("mrpc", "train", tmp_path)
    assert_one_sentence(caught.value, *fragments)


def test_missing_directory_and_unreadable_files(data, monkeypatch):
    (data / "CoLA/dev.tsv").unlink()
    with pytest.raises(UserError) as caught:
        load_task("cola", "train", data)
    assert_one_sentence(caught.value, "CoLA does not hold train.tsv and dev.tsv", "--data-dir")
    (data / "CoLA/dev.tsv").mkdir()
    with pytest.raises(UserError) as caught:
        load_task("cola", "dev", data)
    assert_one_sentence(caught.value, "dev.tsv cannot be read (Is a directory)")

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # a mode of 000 would not stop root
    with pytest.raises(UserError) as caught:
        load_task("mrpc", "dev", data)
    assert_one_sentence(caught.value, "dev.tsv cannot be read (Permission denied)")


def test_fingerprint(tmp_path):
    write(tmp_path, {"abc": "abc"})
    assert glue_data.file_fingerprint(tmp_path / "abc") == {
        "bytes": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
    with pytest.raises(UserError) as caught:
        glue_data.file_fingerprint(tmp_path / "not there")
    assert_one_sentence(caught.value, "not there cannot be read")


def test_torch_is_imported_only_where_it_is_needed(root):
    code = "import sys, glue_data; sys.exit(bool({'torch', 'tqdm'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


# ---- Tokenizer -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", range(len(GOLDEN["options"])))
def test_tokenizer_equals_the_reference(vocabulary, number):
    tokenizer = Tokenizer(vocabulary, *GOLDEN["options"][number])
    cases = [case for case in GOLDEN["cases"] if case[0] == number]
    assert len(cases) > 50
    for _ in range(2):  # the second time from the cache
        for _, text_a, text_b, max_length, *expected in cases:
            encoding = tokenizer.encode(text_a, text_b, max_length)
            assert [encoding.ids, encoding.segments, encoding.words] == expected, (text_a, text_b, max_length)


def test_special_tokens_in_a_text_are_ordinary_characters(vocabulary):
    tokenizer = Tokenizer(vocabulary, lower_case=False)
    encoding = tokenizer.encode("[SEP]", "[MASK] [PAD]")
    assert [token for token in encoding.ids if token in tokenizer.special_ids] == \
        [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
    assert encoding.words == [-1, 0, 1, 1, 1, 2, -1, 0, 1, 1, 1, 1, 2, 3, 4, 4, 4, 5, -1]


def test_vocabulary_and_special_ids(vocabulary):
    tokenizer = Tokenizer(vocabulary)
    assert tokenizer.tokens == GOLDEN["vocabulary"]
    assert [tokenizer.tokens[i] for i in (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id,
                                          tokenizer.mask_id)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert all(tokenizer.tokens[number] == token for token, number in tokenizer.vocabulary.items())


def test_max_length_needs_room_for_the_special_tokens(vocabulary):
    tokenizer = Tokenizer(vocabulary)
    assert tokenizer.encode("the wind", None, 2).words == [-1, -1]
    assert tokenizer.encode("the wind", "a", 3).segments == [0, 0, 1]
    for text_b, max_length in [(None, 1), ("a", 2), ("a", -5)]:
        with pytest.raises(ValueError, match="no room"):
            tokenizer.encode("the wind", text_b, max_length)


def test_every_truncation_cuts_one_piece_from_the_longer_text(vocabulary):
    """From one max_length to the next shorter one, exactly one piece goes, and never from the shorter text."""
    tokenizer = Tokenizer(vocabulary)
    for a, b in [(9, 4), (4, 9), (6, 6), (1, 8), (8, 0)]:
        kept = [tokenizer.encode("a " * a, "b " * b, length) for length in range(3, a + b + 4)]
        sizes = [(encoding.segments.count(0) - 2, encoding.segments.count(1) - 1) for encoding in kept]
        assert sizes[-1] == (a, b) and [sum(size) for size in sizes] == list(range(a + b + 1))
        assert all(max(size) - min(size) <= 1 or min(size) == min(a, b) for size in sizes)


@pytest.mark.parametrize("content, fragments", [
    ("", ["lacks [PAD], [UNK], [CLS], [SEP], [MASK]"]), ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", ["lacks [MASK]"]),
    ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", [":8:", "'a'"]),
    ("[PAD]\n[UNK]\n\n[CLS]\n[SEP]\n[MASK]\n", [":3:"]),
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\xff\n", [":6:", "UTF-8"]), ("[PAD]\n[UNK]\na\0b\n", [":3:", "NUL"]),
    ("a" * 10_000_000, [":1:"])])
def test_malformed_vocabulary(tmp_path, content, fragments):
    write(tmp_path, {"vocab.txt": content})
    with pytest.raises(UserError) as caught:
        Tokenizer(tmp_path / "vocab.txt")
    assert_one_sentence(caught.value, "vocab.txt", *fragments)


def test_vocabulary_with_bom_and_crlf(tmp_path, vocabulary):
    write(tmp_path, {"vocab.txt": "\ufeff" + vocabulary.read_text(encoding="utf-8").replace("\n", "\r\n")})
    assert Tokenizer(tmp_path / "vocab.txt").tokens == GOLDEN["vocabulary"]


def test_missing_vocabulary(tmp_path):
    with pytest.raises(UserError) as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert_one_sentence(caught.value, "vocab.txt cannot be read")


@pytest.mark.parametrize("config, expected", [
    (None, (True, True, True)), ({}, (True, True, True)), ({"do_lower_case": False, "other": 1}, (False, False, True)),
    ({"strip_accents": False}, (True, False, True)),
    ({"do_lower_case": False, "strip_accents": True}, (False, True, True)),
    ({"tokenize_chinese_chars": False, "strip_accents": None}, (True, True, False))])
def test_tokenizer_config(tmp_path, vocabulary, config, expected):
    write(tmp_path, {"vocab.txt": vocabulary.read_bytes()} | (
        {} if config is None else {"tokenizer_config.json": json.dumps(config)}))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert (tokenizer.lower_case, tokenizer.strip_accents, tokenizer.chinese_characters) == expected


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", "null", '{"do_lower_case": "no"}', '{"strip_accents": 0.5}',
                                     b"\xff", '{"do_lower_case": null}', '{"tokenize_chinese_chars": []}',
                                     "[" * 90_000, "[]", '"ab"'])
def test_malformed_tokenizer_config(tmp_path, vocabulary, content):
    write(tmp_path, {"vocab.txt": vocabulary.read_bytes(), "tokenizer_config.json": content})
    with pytest.raises(UserError) as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert_one_sentence(caught.value, "tokenizer_config.json")


def test_mutated_files_end_in_success_or_one_sentence(tmp_path, vocabulary):
    """Flip, cut or insert bytes in valid files: never a traceback."""
    draw = random.Random(1)
    valid = {"MRPC/train.tsv": MRPC, "CoLA/train.tsv": COLA, "MRPC/dev.tsv": MRPC, "CoLA/dev.tsv": COLA,
             "vocab.txt": vocabulary.read_text(encoding="utf-8"), "tokenizer_config.json": '{"do_lower_case": false}'}
    outcomes = []
    for _ in range(60):
        name = draw.choice(["MRPC/train.tsv", "CoLA/train.tsv", "vocab.txt", "tokenizer_config.json"])
        content = bytearray(valid[name].encode())
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(content))
            content[place:place + 1] = [b"", b"\t", b"\n", b"\0", bytes([draw.randrange(256)])][draw.randrange(5)]
        write(tmp_path, valid | {name: bytes(content[:draw.choice([None, draw.randrange(len(content))])])})
        try:
            tokenizer = Tokenizer.from_pretrained(tmp_path)
            for task in ("mrpc", "cola"):
                glue_data.encode_split(load_task(task, "train", tmp_path), tokenizer, 16)
            outcomes.append("success")
        except UserError as error:
            assert_one_sentence(error)
            outcomes.append("error")
    assert 5 < outcomes.count("success") < 55


# ---- Batches ---------------------------------------------------------------------------------------------------------

@pytest.fixture
def tokenizer(vocabulary) -> Tokenizer:
    return Tokenizer(vocabulary)


EXAMPLES = [Example("the storm", "masked", 1), Example("a", "b", 0),
            Example("the wind masked the storm", "a typhoon", 1)]


def test_encode_split_pads_and_batches(tokenizer):
    split = glue_data.encode_split(EXAMPLES, tokenizer, 128)
    encodings = [tokenizer.encode(example.text_a, example.text_b) for example in EXAMPLES]
    assert split.lengths == [len(encoding.ids) for encoding in encodings]
    assert split.ids.shape == split.segments.shape == split.words.shape == (3, max(split.lengths))
    assert split.ids.dtype == split.segments.dtype == split.words.dtype == split.labels.dtype == torch.int64
    assert max(glue_data.encode_split(EXAMPLES, tokenizer, 6).lengths) == 6
    batch = split.batch([1, 0])
    assert batch.ids.shape == (2, split.lengths[0])
    assert batch.labels.tolist() == [0, 1] and batch.attention_mask.dtype == torch.bool
    for row, encoding in enumerate([encodings[1], encodings[0]]):
        padding = split.lengths[0] - len(encoding.ids)
        assert batch.ids[row].tolist() == encoding.ids + [tokenizer.pad_id] * padding
        assert batch.segments[row].tolist() == encoding.segments + [0] * padding
        assert batch.words[row].tolist() == encoding.words + [-1] * padding
        assert batch.attention_mask[row].tolist() == [True] * len(encoding.ids) + [False] * padding


def test_token_frequency_counts_maskable_tokens_only(tokenizer):
    frequency = glue_data.token_frequency(glue_data.encode_split(EXAMPLES, tokenizer, 128), len(tokenizer.tokens))
    assert frequency.dtype == torch.float64 and frequency.sum().item() == pytest.approx(1, abs=1e-15)
    counts = {"the": 3, "storm": 2, "masked": 2, "a": 2, "b": 1, "wind": 1, "typhoon": 1}
    for token, number in tokenizer.vocabulary.items():
        assert frequency[number].item() == pytest.approx(counts.get(token, 0) / 12, abs=1e-15)
    nothing = glue_data.encode_split([Example("\x07", None, 0)], tokenizer, 8)
    with pytest.raises(UserError) as caught:
        glue_data.token_frequency(nothing, len(tokenizer.tokens))
    assert_one_sentence(caught.value, "no word")


@pytest.mark.parametrize("number", [1, 15, 16, 17, 799, 800, 801, 3000])
def test_epoch_batches_hold_every_example_once(number):
    lengths = torch.randint(5, 100, (number,), generator=torch.Generator().manual_seed(number)).tolist()
    for generator in (None, torch.Generator().manual_seed(1)):
        batches = glue_data.epoch_batches(lengths, 16, generator)
        assert sorted(row for batch in batches for row in batch) == list(range(number))
        assert len(batches) == -(-number // 16) and max(map(len, batches)) <= 16
        padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
        if number > 700:
            assert padded < 1.05 * sum(lengths)  # a plain shuffle would give 1.8
    assert [lengths[row] for batch in glue_data.epoch_batches(lengths, 16, None) for row in batch] == sorted(lengths)


def test_epoch_batches_are_determined_by_the_generator():
    lengths = torch.randint(5, 100, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    first, second = ([glue_data.epoch_batches(lengths, 16, generator) for _ in range(2)] for generator in generators)
    assert first == second and first[0] != first[1]
    assert first[0] != glue_data.epoch_batches(lengths, 16, torch.Generator().manual_seed(4))


def test_epoch_batches_are_a_fair_shuffle():
    """Over many epochs short and long examples are on average in the middle, and companions change."""
    lengths, generator = [10 + row for row in range(64)], torch.Generator().manual_seed(0)
    place, companions = torch.zeros(64), [set() for _ in range(64)]
    for _ in range(100):
        for index, batch in enumerate(glue_data.epoch_batches(lengths * 5, 4, generator)):
            for row in batch:
                place[row % 64] += index / (100 * 5)
                companions[row % 64].update(batch)
    assert (place - 39.5).abs().max() < 5  # 80 batches; standard error 23 / sqrt(500) = 1
    assert min(map(len, companions)) > 12


# ---- Metrics ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("predictions, labels, accuracy, f1, matthews", [
    ([1, 1, 0, 0], [1, 1, 0, 0], 1, 1, 1), ([0, 0, 1, 1], [1, 1, 0, 0], 0, 0, -1),
    ([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], 4 / 6, 4 / 6, (2 * 2 - 1) / 9),
    ([1, 1, 1, 1, 0], [1, 0, 0, 1, 1], 2 / 5, 4 / 7, -2 / 24 ** 0.5),  # TP 2, TN 0, FP 2, FN 1: (0 - 2) / sqrt(4 3 2 1)
    ([1, 1, 1], [1, 1, 0], 2 / 3, 4 / 5, 0), ([0, 0, 0], [1, 1, 0], 1 / 3, 0, 0), ([1, 1], [1, 1], 1, 1, 0),
    ([0, 0], [0, 0], 1, 0, 0), ([], [], 0, 0, 0)])
def test_metrics_by_hand(predictions, labels, accuracy, f1, matthews):
    expected = pytest.approx({"accuracy": accuracy, "f1": f1, "matthews": matthews}, abs=1e-12)
    assert glue_data.metrics(predictions, labels) == expected
    assert glue_data.metrics(torch.tensor(predictions), torch.tensor(labels)) == expected


def test_metrics_need_equal_lengths():
    with pytest.raises(ValueError):
        glue_data.metrics([1, 0], [1])


def test_tasks_name_existing_metrics():
    assert {task.metric for task in glue_data.TASKS.values()} <= glue_data.metrics([1], [1]).keys()
    assert {task.selection_metric for task in glue_data.TASKS.values()} <= glue_data.metrics([1], [1]).keys()


def test_a_tokenizer_config_that_cannot_be_read_is_not_taken_for_none(tmp_path):
    tiny.write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").symlink_to("nowhere")
    with pytest.raises(UserError, match="tokenizer_config.json"):
        Tokenizer.from_pretrained(tmp_path)


def test_damaged_archives_of_every_compression_are_refused(tmp_path):
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "CoLA.zip", "w", method) as archive:
            archive.writestr("CoLA/train.tsv", "".join(f"x\t1\t\tsentence {number}\n" for number in range(999)))
        whole = (tmp_path / "CoLA.zip").read_bytes()
        for position in range(60, 180, 4):
            (tmp_path / "CoLA.zip").write_bytes(whole[:position] + bytes([whole[position] ^ 255]) + whole[position + 1:])
            with pytest.raises(UserError, match="CoLA.zip"):
                glue_data.extract(tmp_path / "CoLA.zip", ["CoLA/train.tsv"])
