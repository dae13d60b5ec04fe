"""The embedded sample: its script makes the committed files, which are what its docstring says."""
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from glue_data import Tokenizer, load_task, metrics
from models import Classifier, MaskedLM
from sample import make_sample

SAMPLE = Path(__file__).parent / "sample"
SIZES = {("mrpc", "train"): 600, ("mrpc", "dev"): 200, ("cola", "train"): 800, ("cola", "dev"): 200}


def test_the_script_makes_the_committed_data(tmp_path):
    make_sample.write_data(tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.tsv")}
    assert len(made) == 4
    assert made == {path.relative_to(SAMPLE): path.read_bytes() for path in SAMPLE.rglob("*.tsv")}
    assert (SAMPLE / "bert" / "vocab.txt").read_text().splitlines() == make_sample.make_vocabulary()


@pytest.mark.parametrize("task", ["mrpc", "cola"])
def test_sizes_labels_and_no_sentence_in_both_splits(task):
    sentences = {}
    for split in ("train", "dev"):
        examples = load_task(task, split, SAMPLE)
        assert len(examples) == SIZES[task, split]
        assert 0.65 < sum(example.label for example in examples) / len(examples) < 0.75
        sentences[split] = [example.text_a for example in examples]
        sentences[split] += [example.text_b for example in examples if example.text_b is not None]
        assert len(set(sentences[split])) == len(sentences[split])
    assert set(sentences["train"]).isdisjoint(sentences["dev"])


@pytest.mark.parametrize("task", ["mrpc", "cola"])
def test_length_does_not_give_the_label_away(task):
    """On dev, the commonest training label of the same lengths is no better than the majority."""
    def lengths(example):
        return len(example.text_a.split()) // 2, len((example.text_b or "").split()) // 2

    labels = defaultdict(Counter)
    for example in load_task(task, "train", SAMPLE):
        labels[lengths(example)][example.label] += 1
    dev = load_task(task, "dev", SAMPLE)
    guesses = [labels[lengths(e)].most_common(1)[0][0] if labels[lengths(e)] else 1 for e in dev]
    scores = metrics(guesses, [example.label for example in dev])
    assert scores["accuracy"] < sum(example.label for example in dev) / len(dev) + 0.03
    assert abs(scores["matthews"]) < 0.2


def test_every_word_is_known_and_some_have_several_pieces():
    """Without words of several pieces, whole-word masking would be random masking."""
    tokenizer = Tokenizer.from_pretrained(SAMPLE / "bert")
    assert tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = words = 0
    for task, split in SIZES:
        for example in load_task(task, split, SAMPLE):
            encoding = tokenizer.encode(example.text_a, example.text_b)
            assert tokenizer.unknown_id not in encoding.ids
            assert len(encoding.ids) < 64
            positions = [*zip(encoding.segments, encoding.words)]
            pieces += sum(word >= 0 for _, word in positions)
            words += len({position for position in positions if position[1] >= 0})
    assert 1.1 < pieces / words < 1.5


def test_the_checkpoint_is_whole(capsys):
    assert MaskedLM.from_pretrained(SAMPLE / "bert").newly_initialised == []
    assert capsys.readouterr().out == ""
    classifier = Classifier.from_pretrained(SAMPLE / "bert")
    assert classifier.newly_initialised == ["classifier.weight", "classifier.bias"]


def test_the_checkpoint_has_learnt_to_read():
    """Far better than chance at a masked word that the other sentence of the pair gives away."""
    tokenizer = Tokenizer.from_pretrained(SAMPLE / "bert")
    model = MaskedLM.from_pretrained(SAMPLE / "bert").eval()
    pairs = [example for example in load_task("mrpc", "dev", SAMPLE) if example.label][:50]
    right = 0
    for example in pairs:
        encoding = tokenizer.encode(example.text_a, example.text_b)
        ids = torch.tensor([encoding.ids])  # (1, T)
        segments = torch.tensor([encoding.segments])
        position = max(i for i, piece in enumerate(encoding.ids)
                       if encoding.ids.count(piece) == 2 and piece > tokenizer.mask_id)
        ids[0, position] = tokenizer.mask_id
        with torch.no_grad():
            logits = model(ids, segments, torch.ones_like(ids, dtype=torch.bool))  # (1, T, V)
        right += int(logits[0, position].argmax() == encoding.ids[position])
    assert right > 0.6 * len(pairs)
