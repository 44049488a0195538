"""Golden text operations of Python's own: python make_text.py > text.json

`replace`: random bytes and bytes.decode("utf-8", "replace"). `nfc`: strings and unicodedata.normalize("NFC"). Made by a Python of
Unicode 14 (3.11); only code points assigned there occur, whose normal forms never change.
"""
from __future__ import annotations

import json
import random
import sys
import unicodedata

ASSIGNED = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
MARKS = [c for c in ASSIGNED if unicodedata.combining(c)]
SPACING = [c for c in ASSIGNED if unicodedata.category(c) in ("Mc", "Mn") and not unicodedata.combining(c)]
DECOMPOSED = [c for c in ASSIGNED if unicodedata.normalize("NFD", c) != c and not "\uac00" <= c <= "\ud7a3"]
HANGUL = [chr(c) for c in (*range(0x1100, 0x1200, 3), *range(0xAC00, 0xD7A4, 211))]
BASES = list("aAeio<=> ~") + sorted({unicodedata.normalize("NFD", c)[0] for c in DECOMPOSED})
LEADS = [0x00, 0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]


def random_bytes(rng: random.Random) -> bytes:
    """Characters whole and cut, edge bytes, any bytes."""
    out = b""
    for _ in range(rng.randint(1, 8)):
        whole = rng.choice(["a", "é", "€", "\u0800", "\ud7ff", "\ue000", "😀", "\U0010ffff"]).encode()
        out += rng.choice([whole, whole[: rng.randint(0, len(whole))], bytes([rng.choice(LEADS)]), rng.randbytes(1), whole[1:]])
    return out


def random_text(rng: random.Random) -> str:
    pools = [MARKS, SPACING, DECOMPOSED, HANGUL, BASES, MARKS[:60], BASES[:10]]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 16)))


def main() -> None:
    rng = random.Random(20240607)
    replace = [random_bytes(rng) for _ in range(600)]
    texts = [random_text(rng) for _ in range(500)]
    texts.append("".join(DECOMPOSED))
    texts.append("".join(unicodedata.normalize("NFD", c) for c in DECOMPOSED))
    jamo = [chr(c) for c in range(0x1100, 0x1113)], [chr(c) for c in range(0x1161, 0x1176)], [chr(c) for c in range(0x11A8, 0x11C3)]
    texts.append("".join(first + vowel for first in jamo[0] for vowel in jamo[1][::2]))
    texts.append("".join("ᄒ" + vowel + final for vowel in jamo[1] for final in jamo[2][::3]))
    texts.append("→" * 255 + "∃\u0338" + "⊂\u0338" * 300)  # composites that do not begin with a letter, far from ASCII
    golden = {
        "replace": [[b.hex(), b.decode("utf-8", "replace")] for b in replace],
        "nfc": [[t, unicodedata.normalize("NFC", t)] for t in texts],
    }
    json.dump(golden, sys.stdout, separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    main()
