"""Write tests/golden/tokenizer.json: what `tokenizers` makes of texts chosen to be difficult, as
transformers sets it up from the files of several directories.

    python tests/make_tokenizer_golden.py        (needs transformers 5)

The vocabulary is a small one of our own. The texts hold no character that one version of Unicode
sees in another way than the others, since Python 3.10 to 3.14 have different ones.
"""
import json
import random
import string
import tempfile
from pathlib import Path

from transformers import AutoTokenizer, BertTokenizer

GOLDEN = Path(__file__).resolve().parent / "golden" / "tokenizer.json"
WORDS = """the wind storm typhoon Typhoon mask masked un able storm's cafe café Café naive naïve Über uber
e E ß straße strasse σ ς σας Σ 漢 字 漢字 한국 ᄒ ı i̇ I ﬁ fi … — “ ” € £ 😀 👩 2.5 10 [ ] ##
# a's 。 𠀀 é ô à tre\u0301s""".split()
PIECES = """ing ed s able ness storm phoon \u0301 é e σ ς 字 ᅡ ᆫ 😀 \u200d \u0327 i̇ ı . ' # 0 5""".split()
CHARACTERS = string.ascii_letters + string.digits + string.punctuation
VOCABULARY = [*(f"[unused{i}]" for i in range(3)), "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
              *dict.fromkeys([*CHARACTERS, *WORDS]),
              *dict.fromkeys("##" + piece for piece in [*string.ascii_letters, *PIECES])]
CONFIGS = {  # name of a directory with vocab.txt -> its tokenizer_config.json
    "uncased": {"do_lower_case": True},
    "cased": {"do_lower_case": False},
    "uncased, accents kept": {"strip_accents": False},
    "cased, accents stripped, no Chinese": {
        "do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
}
ADDED = ["[E1]", "[/E1]", "covid19", "Covid", "naïve storm", "漢字かな"]
TEXTS = [
    "", " ", "\t\n", "the storm masked the wind", "  The   TYPHOON\tmasking\r\nstorms  ",
    "unable unableness qqq",
    "the storm's wind, isn't it?!... --- (2.5%) $10 a+b=c <x> ^_^ `~|\\/ @#&*",
    "a$b+c<d=e>f^g`h|i~j", "[SEP [MASK", "##ing # ## ###",
    "café CAFÉ cafe\u0301 naïve NAI\u0308VE Über straße STRASSE ß ẞ",
    "\u0301 \u0301a a\u0301\u0327 \u0327\u0301",
    "σας Σ ΣΑ", "İstanbul ISTANBUL ıi İ",
    "漢字かな漢 字a漢b 𠀀𪜀 a\ufa0eb 豈 ㄱ", "한국 한글 \u1112\u1161\u11ab",
    "😀😀 👩\u200d💻 🏽 🇩🇪 a😀b", "ﬁne ﬃ ① ½ ™ ℌ",
    "“curly” ‘quotes’ — dash – … «a» ¿b? 。、「c」", "€10 £5 ¥3 ¢ ° § ¶ © ±",
    "a\u0000b a\ufffdb a\u200bb a\u00adb a\ufeffb a\u2060b a\u0007b \u200b",
    "a\u00a0b a\u3000b a\u2003b a\u2028b a\u2029b",
    "a\u000bb a\u000cb a\u001cb a\u001db a\u001fb a\u0085b a\u1680b a\u180eb a\u202fb",
    "\ue000 a\uf8ffb \U000f0000",
    "\u0378 a\u0378b \uffff \ufdd0 \U0010fffe", "שָׁלוֹם مَرْحَبًا हिन्दी ไทย",
    "a" * 100, "a" * 101, "é" * 100 + " " + "é" * 101, "storm" * 21,
    "!" * 130, ",;a,;", "a.b.c.d", "x" * 99 + "," + "y" * 101,
    "The-storm_masked/the:wind",
    "½a\u0345 ſ K Å Ω", "Ǆ ǅ ǆ ŉ ΐ ﬀ",
    "\u1e9b\u0323 \u0958 \ufb2c", "\U0001d400 \U0001f1e6a",
]
PAIRS = [
    ("the storm masked the wind", "the typhoon"), ("the typhoon", "the storm masked the wind"),
    ("a b c", "x y z"), ("unable storms", "漢字 café!"), ("", "the wind"), ("the wind", ""), ("", ""),
]
POOLS = [
    "abcdefgh THE storm ", string.printable, "éàôñçÜß\u0301\u0327\u0308 ", "漢字かな한글😀👩\u200d ",
    ".,;:!?-—“”'()[]", "".join(map(chr, range(0x250))),
    "\x00\x0b\x0c\x1c\x85\xa0\u200b\u2028\u3000\ufeff\ufffd ab",
]
ADDED_TEXTS = [
    "[E1] the storm [/E1] and covid19", "COVID19 covid195 xcovid19y covid", "[e1][E1][/e1]s [E1",
    "naive storm naïve storms a NAÏVE STORM", "a漢字かなb 漢字", "the[E1]wind's[/E1].", "covid-19",
]


def write_directories(root: Path) -> None:
    """Four with a vocab.txt; three as transformers 5 saves them; one as transformers 4 saved a
    tokenizer without tokenizer.json (BertTokenizer), with tokens added."""
    entries = dict(lstrip=False, rstrip=False, normalized=True, single_word=False, special=False)
    decoder = {str(len(VOCABULARY) + i): {"content": ADDED[i], **entries} for i in range(3)}
    configs = CONFIGS | {"uncased, with added_tokens_decoder": {"added_tokens_decoder": decoder}}
    for name, config in configs.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text('{"model_type": "bert"}')
        vocabulary = "".join(token + "\n" for token in VOCABULARY)
        (root / name / "vocab.txt").write_text(vocabulary, encoding="utf-8")
        (root / name / "tokenizer_config.json").write_text(json.dumps(config))
    for name, source, added in [("saved uncased", "uncased", []), ("saved cased", "cased", []),
                                ("saved uncased, tokens added", "uncased", ADDED),
                                ("saved cased, tokens added", "cased", ADDED)]:
        tokenizer = BertTokenizer.from_pretrained(root / source)
        tokenizer.add_tokens(added)
        tokenizer.save_pretrained(root / name)
        (root / name / "config.json").write_text('{"model_type": "bert"}')


def choose_cases(names: list[str]) -> list[tuple]:
    """(directory, text_a, text_b, max_length)"""
    draw = random.Random(0)
    vocabularies = list(CONFIGS)
    cases = [(name, text, None, 512) for text in TEXTS for name in vocabularies]
    cases += [("uncased", a, b, length) for a, b in PAIRS for length in [*range(3, 14), 512]]
    cases += [("uncased", text, None, length)
              for text in ("the storm masked", "") for length in range(2, 8)]
    for _ in range(150):
        pools = ["".join(draw.sample(POOLS, 2)) for _ in range(2)]
        a, b = ("".join(draw.choices(pool, k=draw.randrange(1, 25))) for pool in pools)
        length = draw.choice([3, 8, 15, 512])
        cases.append((draw.choice(vocabularies), a, draw.choice([b, None]), length))
    for name in names:
        if name not in vocabularies:
            texts = ADDED_TEXTS if "added" in name else [*TEXTS[5:12], "The CAFÉ"]
            cases += [(name, text, None, 512) for text in texts]
    return cases


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_directories(root)
        names = sorted(path.name for path in root.iterdir())
        directories = {
            name: {path.name: path.read_text(encoding="utf-8")
                   for path in sorted((root / name).iterdir()) if path.name != "config.json"}
            for name in names}
        references = {name: AutoTokenizer.from_pretrained(root / name) for name in names}
    rows = []
    for name, a, b, length in choose_cases(names):
        reference = references[name].backend_tokenizer
        reference.enable_truncation(length, strategy="longest_first")
        encoding = reference.encode(a, b)
        words = [-1 if word is None else word for word in encoding.word_ids]
        rows.append([name, a, b, length, encoding.ids, encoding.type_ids, words])
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    for files in directories.values():  # JSON without its indentation
        for file in files:
            if file.endswith(".json"):
                files[file] = json.dumps(json.loads(files[file]), separators=(",", ":"))
    head = f'"directories":{json.dumps(directories)}'
    GOLDEN.write_text(f'{{{head},\n"cases":[\n{lines}\n]}}\n', encoding="ascii")
    print(f"{GOLDEN.name}: {len(rows)} cases, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
