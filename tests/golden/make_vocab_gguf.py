"""Vocabulary-only GGUF files of the tokenizers in tokenizers.json: python make_vocab_gguf.py WHEELS_FOLDER OUT_FOLDER

WHEELS_FOLDER holds the unpacked wheels llama-models 0.3.0, dashscope 2.0.2 and mistral-common 1.13.1. Needs gguf and sentencepiece
(PyPI). The merges of a tiktoken vocabulary follow from its ranks: a token's two parts are what byte-pair merging gives it when only
lower ranks are allowed.
"""
from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import sys

from gguf import GGUFWriter, TokenType
from sentencepiece import SentencePieceProcessor


def byte_alphabet() -> list[str]:
    """GPT-2's: printable Latin-1 bytes are themselves, the others 256, 257, ... in order."""
    kept = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    letters, extra = [], 0
    for b in range(256):
        letters.append(chr(b) if b in kept else chr(256 + extra))
        extra += b not in kept
    return letters


def parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The token merged by ranks below its own."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(pieces) > 2:
        best = min(range(len(pieces) - 1), key=lambda i: ranks.get(pieces[i] + pieces[i + 1], limit))
        if ranks.get(pieces[best] + pieces[best + 1], limit) >= limit:
            break
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    return pieces


def write_tiktoken(data: bytes, pre: str, out: pathlib.Path) -> None:
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in data.splitlines() if line)}
    letters = byte_alphabet()
    spell = lambda b: "".join(letters[x] for x in b)
    order = sorted(ranks, key=ranks.get)
    merges = []
    for token in order:
        if len(token) > 1 and len(pair := parts(token, ranks)) == 2:
            merges.append(spell(pair[0]) + " " + spell(pair[1]))
    writer = GGUFWriter(out, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([spell(t) for t in order])
    writer.add_token_types([TokenType.NORMAL] * len(order))
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    finish(writer)


def kind(model: SentencePieceProcessor, i: int) -> TokenType:
    if model.is_unknown(i):
        return TokenType.UNKNOWN
    if model.is_control(i):
        return TokenType.CONTROL
    if model.is_unused(i):
        return TokenType.UNUSED
    return TokenType.BYTE if model.is_byte(i) else TokenType.NORMAL


def write_sentencepiece(data: bytes, out: pathlib.Path) -> None:
    model = SentencePieceProcessor(model_proto=data)
    ids = range(model.get_piece_size())
    writer = GGUFWriter(out, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in ids])
    writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types([kind(model, i) for i in ids])
    writer.add_add_space_prefix(True)
    writer.add_add_bos_token(False)
    finish(writer)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    golden = json.load(open(pathlib.Path(__file__).parent / "tokenizers.json"))
    for name, entry in golden.items():
        data = (root / entry["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            sys.exit(f"{entry['file']}: not the file that tokenizers.json was made from")
        part = out / f"{name}.gguf.part"
        if "pattern" in entry:
            write_tiktoken(data, name, part)
        else:
            write_sentencepiece(data, part)
        part.rename(out / f"{name}.gguf")
        print(f"made {out / name}.gguf", flush=True)


if __name__ == "__main__":
    main()
