"""The data: tokenizer, readers, batches and metrics (downloads are tested in test_download.py)."""
import json
import random
from pathlib import Path

import glue_data
import pytest
import torch
from glue_data import Example, Tokenizer, UserError, load_task

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tokenizer.json").read_text("ascii"))
UNCASED = GOLDEN["directories"]["uncased"]
TOKENS = UNCASED["vocab.txt"].splitlines()
SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    return Tokenizer.from_pretrained(write(tmp_path / "uncased", UNCASED))


# ---- Tokenizer -----------------------------------------------------------------------------------

@pytest.mark.parametrize("directory", GOLDEN["directories"])
def test_ids_equal_those_of_transformers(tmp_path, directory):
    """The definition: the files of a checkpoint, and of a text the same ids, segments and words.

    The directories hold vocab.txt, or what transformers 5 saves; uncased, cased, and with tokens
    added (tests/make_tokenizer_golden.py).
    """
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, GOLDEN["directories"][directory]))
    cases = [case for case in GOLDEN["cases"] if case[0] == directory]
    assert len(cases) >= 7
    for _, text_a, text_b, max_length, *expected in cases:
        encoding = tokenizer.encode(text_a, text_b, max_length)
        assert [encoding.ids, encoding.segments, encoding.words] == expected, (text_a, text_b)


def test_an_example_by_hand(tokenizer):
    encoding = tokenizer.encode("Unable storms!", "The wind")
    tokens = [tokenizer.tokens[number] for number in encoding.ids]
    assert tokens == ["[CLS]", "un", "##able", "storm", "##s", "!", "[SEP]", "the", "wind", "[SEP]"]
    assert encoding.segments == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert encoding.words == [-1, 0, 0, 1, 1, 2, -1, 0, 1, -1]


@pytest.mark.parametrize("directory", ["uncased", "saved uncased, tokens added"])
def test_special_tokens_in_a_text_are_ordinary_characters(tmp_path, directory):
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, GOLDEN["directories"][directory]))
    ids = tokenizer.encode("[SEP] [CLS]", "[MASK] [PAD]").ids
    special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    expected = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
    assert [number for number in ids if number in special] == expected


def test_special_tokens_that_were_added_are_ordinary_characters_too(tmp_path):
    files = dict(GOLDEN["directories"]["saved cased, tokens added"])
    content = json.loads(files["tokenizer.json"])
    for entry in content["added_tokens"]:
        entry["special"] = True
    files["tokenizer.json"] = json.dumps(content)
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, files))
    assert tokenizer.vocabulary["[E1]"] not in tokenizer.encode("the [E1] storm").ids
    assert tokenizer.tokens[-6:] == ["[E1]", "[/E1]", "covid19", "Covid", "naïve storm", "漢字かな"]


def test_special_ids_and_the_shortest_encodings(tokenizer):
    assert tokenizer.tokens == TOKENS
    ids = [tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id]
    names = [tokenizer.tokens[number] for number in [*ids, tokenizer.mask_id]]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.encode("the wind", None, 2).words == [-1, -1]
    assert tokenizer.encode("the wind", "a", 3).segments == [0, 0, 1]


def test_every_truncation_cuts_one_piece_from_the_longer_text(tokenizer):
    """From one max_length to the next shorter one piece goes, never from the shorter text."""
    for a, b in [(9, 4), (4, 9), (6, 6), (1, 8), (8, 0)]:
        for length in range(3, a + b + 4):
            encoding = tokenizer.encode("a " * a, "b " * b, length)
            sizes = [encoding.segments.count(0) - 2, encoding.segments.count(1) - 1]
            assert sum(sizes) == length - 3
            assert max(sizes) - min(sizes) <= 1 or min(sizes) == min(a, b)


# ---- Tokenizer files -----------------------------------------------------------------------------

def test_files_that_are_read(tmp_path):
    """tokenizer.json before vocab.txt: transformers 4 writes both, and both give the same ids."""
    saved = GOLDEN["directories"]["saved cased"]
    both = write(tmp_path / "both", saved | {"vocab.txt": UNCASED["vocab.txt"]})
    names = ["tokenizer.json", "tokenizer_config.json"]
    assert glue_data.tokenizer_files(both) == {name: both / name for name in names}

    without = {name: text for name, text in saved.items() if name != "tokenizer.json"}
    vocabulary = write(tmp_path / "vocabulary", without | {"vocab.txt": UNCASED["vocab.txt"]})
    assert [*glue_data.tokenizer_files(vocabulary)] == ["vocab.txt", "tokenizer_config.json"]
    for text in ("The Storm-masked", "CAFÉ"):
        encodings = [Tokenizer.from_pretrained(path).encode(text) for path in (both, vocabulary)]
        assert encodings[0] == encodings[1]


@pytest.mark.parametrize("config, expected", [
    ({}, (True, True, True)),
    ({"do_lower_case": None, "strip_accents": None}, (True, True, True)),
    ({"do_lower_case": False, "other": 1}, (False, False, True)),
    ({"strip_accents": False}, (True, False, True)),
    ({"do_lower_case": False, "strip_accents": True}, (False, True, True)),
    ({"tokenize_chinese_chars": False}, (True, True, False)),
])
def test_tokenizer_config_has_the_last_word(tmp_path, config, expected):
    files = UNCASED | {"tokenizer_config.json": json.dumps(config)}
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, files))
    options = (tokenizer.lowercase, tokenizer.strip_accents, tokenizer.handle_chinese_chars)
    assert options == expected
    files |= GOLDEN["directories"]["saved uncased"] | {"tokenizer_config.json": json.dumps(config)}
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, files))  # of the normalizer the same
    assert (tokenizer.lowercase, tokenizer.strip_accents) == expected[:2]


@pytest.mark.parametrize("config, said", [(None, True), ("{}", True),
                                          ('{"do_lower_case": true}', False),
                                          ('{"do_lower_case": false}', False)])
def test_a_vocabulary_with_capitals_and_no_word_on_them_is_said(tmp_path, capsys, config, said):
    small = SPECIAL + "[unused1]\nthe\n##s\n"  # no capitals: no word is needed
    Tokenizer.from_pretrained(write(tmp_path / "small", {"vocab.txt": small}))
    files = {"vocab.txt": UNCASED["vocab.txt"]}
    if config is not None:
        files["tokenizer_config.json"] = config
    Tokenizer.from_pretrained(write(tmp_path, files))
    printed = capsys.readouterr().out
    Tokenizer.from_pretrained(tmp_path)  # once is enough
    assert capsys.readouterr().out == ""
    assert printed.count("\n") == said
    assert ('write {"do_lower_case": false} into tokenizer_config.json' in printed) == said


@pytest.mark.parametrize("change", [
    lambda text: text + "\n", lambda text: text.removesuffix("\n"),
    lambda text: "\ufeff" + text.replace("\n", "\r\n"),
], ids=["an empty last line", "no last newline", "BOM and CRLF"])
def test_a_vocabulary_is_read_however_its_lines_end(tmp_path, change):
    files = UNCASED | {"vocab.txt": change(UNCASED["vocab.txt"])}
    assert Tokenizer.from_pretrained(write(tmp_path, files)).tokens == TOKENS


def changed(part: str, **values) -> dict[str, str]:
    """Files as transformers 5 saves them, with something else in one part of tokenizer.json."""
    content = json.loads(GOLDEN["directories"]["saved uncased"]["tokenizer.json"])
    content[part] = {**content[part], **values}
    return {"tokenizer.json": json.dumps(content)}


def test_an_old_file_that_does_not_name_its_model(tmp_path):
    """Early releases of `tokenizers` wrote a WordPiece model without its type."""
    content = json.loads(GOLDEN["directories"]["saved uncased"]["tokenizer.json"])
    del content["model"]["type"]
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, {"tokenizer.json": json.dumps(content)}))
    assert tokenizer.tokens == TOKENS


REFUSED = {  # files, what is said of them
    "nothing": ({}, "neither tokenizer.json nor vocab.txt"),
    "an empty vocabulary": ({"vocab.txt": ""}, "vocab.txt .*KeyError: '.PAD.'"),
    "no [MASK]": ({"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n"}, "vocab.txt .*'.MASK.'"),
    "a token twice": ({"vocab.txt": SPECIAL + "a\nb\na\n"}, "vocab.txt .*twice"),
    "not UTF-8": ({"vocab.txt": SPECIAL.encode() + b"\xff\n"}, "vocab.txt:6: is not UTF-8"),
    "BPE": (changed("model", type="BPE"), "tokenizer.json .*its model is BPE, only WordPiece"),
    "another normalizer": (changed("normalizer", type="Sequence"), "its normalizer is Sequence"),
    "other words": (changed("pre_tokenizer", type="ByteLevel"), "its pre_tokenizer is ByteLevel"),
    "an id left out": (changed("model", vocab={"a": 1}), "tokenizer.json .*0, 1, 2"),
    "no vocabulary": (changed("model", vocab=None), "tokenizer.json"),
    "no JSON": ({"tokenizer.json": "{"}, "tokenizer.json .*JSON"),
    "a list": ({"tokenizer.json": "[]"}, "tokenizer.json"),
    "depth": ({"tokenizer.json": "[" * 90_000}, "tokenizer.json"),
    "no config": (UNCASED | {"tokenizer_config.json": ""}, "tokenizer_config.json .*JSON"),
    "no Boolean": (UNCASED | {"tokenizer_config.json": '{"do_lower_case": "false"}'},
                   "do_lower_case is 'false', it must be true or false"),
    "an id that is no number": (changed("model", vocab={"a": 0.0}), "tokenizer.json .*0, 1, 2"),
    "a list for a config": (UNCASED | {"tokenizer_config.json": "[1]"}, "tokenizer_config.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_bert_tokenizer_is_one_sentence(tmp_path, case):
    files, said = REFUSED[case]
    with pytest.raises(UserError, match=said) as caught:
        Tokenizer.from_pretrained(write(tmp_path, files))
    assert str(caught.value).isprintable() and str(tmp_path) in str(caught.value)


# ---- Readers -------------------------------------------------------------------------------------

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
MRPC = HEADER + '1\t10\t20\tHe said "yes.\tShe said yes.\n0\t11\t21\tIt rains.\tIt\'s dry.\n'
COLA = "gj04\t1\t\tThe wind blew.\nbc01\t0\t*\tWind the blew.\n"


@pytest.fixture
def data(tmp_path) -> Path:
    return write(tmp_path, {"MRPC/train.tsv": MRPC, "MRPC/dev.tsv": MRPC,
                            "CoLA/train.tsv": COLA, "CoLA/dev.tsv": COLA})


def test_reads_both_tasks(data):
    assert load_task("mrpc", "train", data) == [
        Example('He said "yes.', "She said yes.", 1), Example("It rains.", "It's dry.", 0)]
    assert load_task("cola", "dev", data) == [
        Example("The wind blew.", None, 1), Example("Wind the blew.", None, 0)]
    assert glue_data.task_files("mrpc", data) == {
        "MRPC/train.tsv": data / "MRPC/train.tsv", "MRPC/dev.tsv": data / "MRPC/dev.tsv"}


@pytest.mark.parametrize("change", [
    lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n"),
    lambda text: text.removesuffix("\n"),
], ids=["BOM", "CRLF", "no last newline"])
def test_bom_crlf_and_a_missing_last_newline_are_simply_read(data, change):
    expected = {task: load_task(task, "train", data) for task in ("mrpc", "cola")}
    write(data, {"MRPC/train.tsv": change(MRPC), "CoLA/train.tsv": change(COLA)})
    assert {task: load_task(task, "train", data) for task in ("mrpc", "cola")} == expected


def test_only_newlines_end_lines_and_quotes_are_characters(data):
    text = 'a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g " h \' \rk'
    write(data, {"CoLA/train.tsv": f'"x"\t1\t"\t{text}\n"y\t0\t\t"z\n'})
    assert [example.text_a for example in load_task("cola", "train", data)] == [text, '"z']


MALFORMED = {  # file, content, what is said of it
    "too few columns": ("CoLA/train.tsv", COLA + "x\t1\tThe wind.\n", "tsv:3: 3 columns, not 4"),
    "too many columns": ("MRPC/dev.tsv", MRPC + "1\t2\t3\ta\tb\tc\n", "tsv:4: 6 columns, not 5"),
    "blank line": ("CoLA/train.tsv", COLA + "\n" + COLA, "tsv:3: 1 columns"),
    "label of MRPC": ("MRPC/dev.tsv", MRPC + "2\t2\t3\ta\tb\n", "tsv:4: the label is '2'"),
    "label of CoLA": ("CoLA/train.tsv", "x\tone\t\ta\n", "tsv:1: the label is 'one'"),
    "odd label": ("CoLA/train.tsv", "x\t\x1b[31m\u2028\t\ta\n", r"tsv:1: .*\\x1b\[31m\\u2028'"),
    "long label": ("CoLA/train.tsv", f"x\t{'1' * 5000}\t\ta\n", "tsv:1: the label is '1{30}'"),
    "empty sentence": ("CoLA/train.tsv", COLA + "x\t1\t\t \n", "tsv:3: a sentence is empty"),
    "empty second": ("MRPC/train.tsv", MRPC + "1\t2\t3\ta\t\n", "tsv:4: a sentence is empty"),
    "no header": ("MRPC/train.tsv", MRPC.removeprefix(HEADER), "tsv:1: .*#1 String"),
    "only the header": ("MRPC/train.tsv", HEADER, "train.tsv holds no examples"),
    "empty CoLA": ("CoLA/train.tsv", "", "train.tsv:1: 1 columns, not 4"),
    "empty MRPC": ("MRPC/dev.tsv", "", "dev.tsv:1: the first line must be"),
    "Latin-1": ("CoLA/train.tsv", COLA.encode() + b"x\t1\t\tcaf\xe9\n", "tsv:3: is not UTF-8"),
    "UTF-16": ("CoLA/train.tsv", COLA.encode("utf-16"), "tsv:1: is not UTF-8"),
    "binary": ("CoLA/train.tsv", bytes(range(256)), "tsv:"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_data_is_one_sentence_with_file_and_line(data, case):
    name, content, said = MALFORMED[case]
    write(data, {name: content})
    with pytest.raises(UserError, match=said) as caught:
        load_task(name[:4].lower(), Path(name).stem, data)
    text = str(caught.value)
    assert text.isprintable() and "; " in text and len(text) < 300


def test_missing_and_unreadable_files(data):
    (data / "CoLA/dev.tsv").unlink()
    with pytest.raises(UserError, match=r"CoLA/dev.tsv cannot be read \(No such file"):
        load_task("cola", "dev", data)
    (data / "CoLA/dev.tsv").mkdir()
    with pytest.raises(UserError, match=r"dev.tsv cannot be read \(Is a directory\)"):
        load_task("cola", "dev", data)


def test_mutated_files_end_in_success_or_one_sentence(tmp_path):
    """Change, cut or insert bytes in valid files: never a traceback."""
    draw = random.Random(1)
    glue = {f"{folder}/{split}.tsv": content for split in ("train", "dev")
            for folder, content in (("MRPC", MRPC), ("CoLA", COLA))}
    valid = glue | UNCASED
    outcomes = []
    for _ in range(60):
        name = draw.choice(["MRPC/train.tsv", "CoLA/train.tsv", *UNCASED])
        content = bytearray(valid[name].encode())
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(content))
            change = draw.choice([b"", b"\t", b"\n", b"\0", draw.randbytes(1)])
            content[place:place + 1] = change
        write(tmp_path, valid | {name: bytes(content)})
        try:
            tokenizer = Tokenizer.from_pretrained(tmp_path)
            for task in ("mrpc", "cola"):
                glue_data.encode_split(load_task(task, "train", tmp_path), tokenizer, 16)
            outcomes.append("success")
        except UserError as error:
            assert str(error).isprintable()
            outcomes.append("error")
    assert 5 < outcomes.count("success") < 55


def test_sha256(tmp_path):
    write(tmp_path, {"abc": "abc"})
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert glue_data.sha256_of(tmp_path / "abc") == expected
    with pytest.raises(UserError, match="not there cannot be read"):
        glue_data.sha256_of(tmp_path / "not there")


# ---- Batches -------------------------------------------------------------------------------------

EXAMPLES = [Example("the storm", "masked", 1), Example("a", "b", 0),
            Example("the wind masked the storm", "a typhoon", 1)]


def test_a_batch_is_its_encodings_padded_to_the_longest(tokenizer):
    split = glue_data.encode_split(EXAMPLES, tokenizer, 128)
    encodings = [tokenizer.encode(example.text_a, example.text_b) for example in EXAMPLES]
    assert split.lengths == [6, 5, 10]
    assert split.ids.shape == split.segments.shape == split.words.shape == (3, 10)
    assert {split.ids.dtype, split.segments.dtype, split.words.dtype} == {torch.int64}
    batch = split.batch([1, 0])
    assert batch.labels.tolist() == [0, 1]
    assert batch.attention_mask.dtype == torch.bool and batch.ids.shape == (2, 6)
    for row, encoding in enumerate([encodings[1], encodings[0]]):
        padding = 6 - len(encoding.ids)
        assert batch.ids[row].tolist() == encoding.ids + [tokenizer.pad_id] * padding
        assert batch.segments[row].tolist() == encoding.segments + [0] * padding
        assert batch.words[row].tolist() == encoding.words + [-1] * padding
        assert batch.attention_mask[row].tolist() == [True] * (6 - padding) + [False] * padding
    assert glue_data.encode_split(EXAMPLES, tokenizer, 6).lengths == [6, 5, 6]  # cut


def test_token_frequency_counts_maskable_tokens_only(tokenizer):
    split = glue_data.encode_split(EXAMPLES, tokenizer, 128)
    frequency = glue_data.token_frequency(split, len(TOKENS))
    counts = {"the": 3, "storm": 2, "masked": 2, "a": 2, "b": 1, "wind": 1, "typhoon": 1}
    expected = torch.tensor([counts.get(token, 0) for token in TOKENS]).double() / 12
    torch.testing.assert_close(frequency, expected, rtol=0, atol=1e-15)


def test_a_vocabulary_that_lacks_the_words_is_said_above_one_percent(tokenizer, capsys):
    for unknown, said in ((1, False), (2, True)):
        texts = [Example("the " * 99, None, 0)] + unknown * [Example("\u2603", None, 1)]
        split = glue_data.encode_split(texts, tokenizer, 128)
        glue_data.notice_unknown(split, tokenizer, "DIR")
        printed = capsys.readouterr().out
        assert printed.startswith("NOTICE: DIR: 2.0% of the training pieces are [UNK]") == said
        assert printed.count("\n") == said


def random_lengths(number: int) -> list[int]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(5, 100, (number,), generator=generator).tolist()


@pytest.mark.parametrize("number", [1, 15, 16, 17, 799, 800, 801, 3000])
def test_epoch_batches_hold_every_example_once(number):
    lengths = random_lengths(number)
    for generator in (None, torch.Generator().manual_seed(1)):
        batches = glue_data.epoch_batches(lengths, 16, generator)
        assert sorted(row for batch in batches for row in batch) == list(range(number))
        assert max(map(len, batches)) <= 16 and 16 * (len(batches) - 1) < number
        if generator is None:  # by length
            assert [lengths[row] for batch in batches for row in batch] == sorted(lengths)


def test_batches_hold_sentences_of_like_length():
    """Padding costs under 5 percent; with batches of a plain shuffle it would be 80."""
    lengths = random_lengths(3000)
    batches = glue_data.epoch_batches(lengths, 16, torch.Generator().manual_seed(1))
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    assert padded < 1.05 * sum(lengths)


def test_epoch_batches_are_determined_by_the_generator():
    lengths = random_lengths(500)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 3, 4)]
    epochs = [[glue_data.epoch_batches(lengths, 16, g) for _ in range(2)] for g in generators]
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1]
    assert epochs[0][0] != epochs[2][0]


def test_epoch_batches_are_a_fair_shuffle():
    """Over many epochs short and long examples are on average in the middle, in new company."""
    lengths = [10 + row for row in range(64)] * 5
    generator = torch.Generator().manual_seed(0)
    place = torch.zeros(64)
    companions = [set() for _ in range(64)]
    for _ in range(100):
        for index, batch in enumerate(glue_data.epoch_batches(lengths, 4, generator)):
            for row in batch:
                place[row % 64] += index / (100 * 5)
                companions[row % 64].update(batch)
    assert (place - 39.5).abs().max() < 5  # of 80 batches; standard error 23 / sqrt(500) = 1
    assert min(map(len, companions)) > 12


# ---- Metrics -------------------------------------------------------------------------------------

@pytest.mark.parametrize("predictions, labels, accuracy, f1, matthews", [
    ([1, 1, 0, 0], [1, 1, 0, 0], 1, 1, 1),
    ([0, 0, 1, 1], [1, 1, 0, 0], 0, 0, -1),
    ([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], 4 / 6, 4 / 6, (2 * 2 - 1) / 9),
    # TP 2, TN 0, FP 2, FN 1: (2 * 0 - 2 * 1) / sqrt(4 * 3 * 2 * 1)
    ([1, 1, 1, 1, 0], [1, 0, 0, 1, 1], 2 / 5, 4 / 7, -2 / 24 ** 0.5),
    # undefined, and so 0, as in GLUE's scorer: one class only
    ([1, 1, 1], [1, 1, 0], 2 / 3, 4 / 5, 0),
    ([0, 0, 0], [1, 1, 0], 1 / 3, 0, 0),
    ([0, 0], [0, 0], 1, 0, 0),
])
def test_metrics_by_hand(predictions, labels, accuracy, f1, matthews):
    expected = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
    assert glue_data.metrics(predictions, labels) == pytest.approx(expected, abs=1e-12)
