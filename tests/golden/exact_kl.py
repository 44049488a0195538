"""Exact mean KL divergence of a server's distributions from the float64 reference.

    tally eval MODEL --golden smollm2.json --tokens 769 --logprobs rows.f32
    python exact_kl.py MODEL.gguf smollm2.json rows.f32 [--save exact.npy]

rows.f32: float32 log-probabilities [rows][vocabulary], one row for each scored id. Needs numpy and gguf (PyPI) and reference.py.
--save keeps the reference's rows (float32) and uses them when the file is there already: they take a minute to compute.
"""
from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np

from reference import Model, Sequence, log_softmax


def reference_rows(model_path: str, ids: list[int], saved: str | None) -> np.ndarray:
    if saved and pathlib.Path(saved).exists():
        rows = np.load(saved)
        if len(rows) >= len(ids):
            return rows[: len(ids)]
    rows = log_softmax(Sequence(Model(model_path)).forward(ids))
    if saved:
        np.save(saved, rows.astype(np.float32))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("golden")
    parser.add_argument("rows")
    parser.add_argument("--save")
    args = parser.parse_args()
    ids = json.load(open(args.golden))["perplexity"]["ids"]
    model_rows = np.fromfile(args.rows, dtype=np.float32)
    vocab = len(Model(args.model).weight("token_embd.weight"))
    model_rows = model_rows.reshape(-1, vocab)
    exact = reference_rows(args.model, ids[: len(model_rows)], args.save)
    kls = []
    for p, q in zip(exact, model_rows):
        p, q = p.astype(np.float64), q.astype(np.float64)
        kls.append(float((np.exp(p) * (p - q)).sum()))
    kls = np.array(kls)
    same = float((exact.argmax(axis=1) == model_rows.argmax(axis=1)).mean())
    print(json.dumps({"rows": len(kls), "mean_kl": float(kls.mean()), "p99_kl": float(np.percentile(kls, 99)), "max_kl": float(kls.max()),
                      "top1_agreement": same}))


if __name__ == "__main__":
    main()
