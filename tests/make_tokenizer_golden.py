"""Write tests/golden/tokenizer.json: what `tokenizers` and `transformers` make of texts chosen to be difficult.

    python tests/make_tokenizer_golden.py        (needs the packages tokenizers and transformers)

The vocabulary is a small one of our own. Both libraries must agree before a case is written.
"""
import json
import random
import string
import tempfile
from pathlib import Path

from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast

GOLDEN = Path(__file__).resolve().parent / "golden" / "tokenizer.json"
WORDS = """the wind storm typhoon Typhoon mask masked un able storm's cafe café Café naive naïve Über uber e E ß straße
strasse σ ς σας Σ 漢 字 漢字 한국 ᄒ ı i̇ I ﬁ fi … — “ ” € £ 😀 👩 2.5 10 [ ] ## # a's 。 𠀀 é ô à tre\u0301s""".split()
PIECES = """ing ed s able ness storm phoon \u0301 é e σ ς 字 ᅡ ᆫ 😀 \u200d \u0327 i̇ ı . ' # 0 5""".split()
CHARACTERS = string.ascii_letters + string.digits + string.punctuation
VOCABULARY = [*(f"[unused{i}]" for i in range(3)), "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
              *dict.fromkeys([*CHARACTERS, *WORDS]),
              *dict.fromkeys("##" + piece for piece in [*string.ascii_letters, *PIECES])]
OPTIONS = [(True, None, True), (False, None, True), (True, False, True), (False, True, False)]  # lower, strip, Chinese
TEXTS = [
    "", " ", "\t\n", "the storm masked the wind", "  The   TYPHOON\tmasking\r\nstorms  ", "unable unableness qqq",
    "the storm's wind, isn't it?!... --- (2.5%) $10 a+b=c <x> ^_^ `~|\\/ @#&*",
    "a$b+c<d=e>f^g`h|i~j", "[SEP [MASK", "##ing # ## ###",
    "café CAFÉ cafe\u0301 naïve NAI\u0308VE Über straße STRASSE ß ẞ", "\u0301 \u0301a a\u0301\u0327 \u0327\u0301",
    "σας ΣΑΣ Σ ΟΔΥΣΣΕΥΣ", "İstanbul ISTANBUL ıi İ",
    "漢字かな漢 字a漢b 𠀀𪜀\U0002b820\U0002b920 a\U0002b820b a\U0002b920b a\ufa0eb 豈 ㄱ", "한국 한글 \u1112\u1161\u11ab",
    "😀😀 👩\u200d💻 🏽 🇩🇪 a😀b", "ﬁne ﬃ ① ½ ™ ℌ",
    "“curly” ‘quotes’ — dash – … «a» ¿b? 。、「c」", "€10 £5 ¥3 ¢ ° § ¶ © ±",
    "a\u0000b a\ufffdb a\u200bb a\u00adb a\ufeffb a\u2060b a\u0007b \u200b",
    "a\u00a0b a\u3000b a\u2003b a\u2028b a\u2029b",
    "a\u000bb a\u000cb a\u001cb a\u001db a\u001fb a\u0085b a\u1680b a\u180eb a\u202fb", "\ue000 a\uf8ffb \U000f0000",
    "\u0378 a\u0378b \uffff \ufdd0 \U0010fffe", "שָׁלוֹם مَرْحَبًا हिन्दी ไทย",
    "a" * 100, "a" * 101, "é" * 100 + " " + "é" * 101, "storm" * 21,
    "!" * 130, ",;a,;", "a.b.c.d", "x" * 99 + "," + "y" * 101,
    "The-storm_masked/the:wind", "a\u05c8b \u061d \u0898 \u2e5d \u1c89",
    "\u166d \u1734a \U000111c9 \U0001171e \U00011938", "½a\u0345 ſ K Å Ω", "Ǆ ǅ ǆ ŉ ΐ ﬀ",
    "\u1e9b\u0323 \u0958 \ufb2c", "\U0001d400 \U0001f1e6a",
]
PAIRS = [("the storm masked the wind", "the typhoon"), ("the typhoon", "the storm masked the wind"), ("a b c", "x y z"),
         ("unable storms", "漢字 café!"), ("", "the wind"), ("the wind", ""), ("", "")]
POOLS = ["abcdefgh THE storm ", string.printable, "éàôñçÜß\u0301\u0327\u0308 ", "漢字かな한글😀👩\u200d ", ".,;:!?-—“”'()[]",
         "".join(map(chr, range(0x250))), "\x00\x0b\x0c\x1c\x85\xa0\u200b\u2028\u3000\ufeff\ufffd ab"]


def main() -> None:
    draw = random.Random(0)
    cases = [(number, text, None, 512) for text in TEXTS for number in range(len(OPTIONS))]
    cases += [(0, a, b, length) for a, b in PAIRS for length in [*range(3, 14), 512]]
    cases += [(0, text, None, length) for text in ("the storm masked", "") for length in range(2, 8)]
    for _ in range(150):
        a, b = ("".join(draw.choices("".join(draw.sample(POOLS, 2)), k=draw.randrange(1, 25))) for _ in range(2))
        cases.append((draw.randrange(len(OPTIONS)), a, draw.choice([b, None]), draw.choice([3, 8, 15, 512])))
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("".join(token + "\n" for token in VOCABULARY), encoding="utf-8")
        references = [(BertWordPieceTokenizer(str(vocabulary), lowercase=lower, strip_accents=accents,
                                              handle_chinese_chars=chinese),
                       BertTokenizerFast(str(vocabulary), do_lower_case=lower, strip_accents=accents,
                                         tokenize_chinese_chars=chinese)) for lower, accents, chinese in OPTIONS]
    rows = []
    for number, a, b, length in cases:
        reference, other = references[number]
        reference.enable_truncation(length, strategy="longest_first")
        encoding = reference.encode(a, b)
        row = [encoding.ids, encoding.type_ids, [-1 if word is None else word for word in encoding.word_ids]]
        if b != "":  # which transformers takes for no second text
            second = other(a, b, truncation="longest_first", max_length=length)
            assert row[:2] == [second["input_ids"], second["token_type_ids"]], (a, b, length)
            assert row[2] == [-1 if word is None else word for word in second.word_ids()], (a, b, length)
        rows.append([number, a, b, length, *row])
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    head = f'"options":{json.dumps(OPTIONS)},\n"vocabulary":{json.dumps(VOCABULARY)}'
    GOLDEN.write_text(f'{{{head},\n"cases":[\n{lines}\n]}}\n', encoding="ascii")
    print(f"{GOLDEN.name}: {len(rows)} cases, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
