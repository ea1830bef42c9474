"""Compute the figures of 2026-11-15-tokenizer.md."""

from __future__ import annotations

from statistics import median

from records import result

training = result("2026-11-15-tokenizer-training.json")
encoding = result("2026-11-15-tokenizer-encoding.json")
scaling = result("2026-11-15-tokenizer-scaling.json")

TRAINED = {
    "5mb-10k": "5 MB, 10,000",
    "5mb-32k": "5 MB, 32,000",
    "100mb-10k": "100 MB, 10,000",
    "100mb-32k": "100 MB, 32,000",
    "1gb-10k": "1 GB, 10,000 (gigatoken only)",
}
ENCODED = {
    "document-20mb cold": "one document of 20 MB, cold",
    "document-20mb warm": "the same, warm",
    "batch-100mb cold": "100 MB in 10,159 documents, cold",
    "batch-100mb warm": "the same, warm",
    "file-100mb cold": "a file of 100 MB to ids in memory, cold",
    "file-100mb warm": "the same, warm",
    "token-file-100mb cold": "a file of 100 MB to a token file, cold",
    "token-file-100mb warm": "the same, warm",
    "tiny": "“Hello, world! How are you?”",
    "odd-letter-1mb cold": "1 MB of one letter, cold",
    "odd-spaces-1mb cold": "1 MB of spaces, cold",
    "odd-unicode-1mb cold": "1 MB of random Unicode, cold",
}


def rows_of(measured, title):
    """Return the rows of a column by contestant."""
    (column,) = [column for column in measured["columns"] if column["title"] == title]
    return {row["contestant"]: row for row in column["results"] if not row["error"]}


def three_digits(x):
    return f"{x:.3f}" if x < 1 else f"{x:.2f}" if x < 10 else f"{x:.1f}"


def in_seconds(x):
    return f"{x * 1e6:.2f} µs" if x < 1e-4 else f"{three_digits(x)} s"


def race_rows(measured, titles, write, digits):
    """Return a table of our time, the fastest peer, and the memory relative to the lowest peer."""
    rows = [("", "ours", "fastest peer", "times faster", "memory")]
    for title, name in titles.items():
        peers = rows_of(measured, title)
        ours = peers.pop("bytewright")
        seconds = {peer: row["seconds"]["median"] for peer, row in peers.items()}
        fastest = min(seconds, key=seconds.__getitem__)
        ratio = seconds[fastest] / ours["seconds"]["median"]
        leanest = min(row["peak_anon_mb"]["median"] for row in peers.values())
        memory = f"{ours['peak_anon_mb']['median'] / leanest:.2f}"
        times = write(ours["seconds"]["median"]), f"{fastest} {write(seconds[fastest])}"
        rows.append((name, *times, f"{ratio:.{digits}f}", memory))
    return rows


def spread(is_ours, of=median):
    """Return how many times as long as the lowest the highest of the cold calls takes."""
    cold = [column["results"] for column in encoding["columns"] if "cold" in column["title"]]
    found = [
        row["seconds"] for rows in cold for row in rows if (row["contestant"] == "bytewright") is is_ours
    ]
    return f"{of(it['highest'] / it['lowest'] for it in found):.1f}"


def first_difference(title, contestant):
    agreement = rows_of(training, title)[contestant]["agreement"]
    return f"{int(agreement.split('differs at ')[1].split()[0]):,}"


def time_of(contestant):
    return in_seconds(rows_of(encoding, "document-20mb cold")[contestant]["seconds"]["median"])


def scaling_rows():
    steps = [(job, megabytes) for job in ("train", "encode") for megabytes in (1, 10)]
    names = {"train": "training", "encode": "encoding"}
    rows = [("", *(f"{size} to {2 * size} MB, {names[job]}" for job, size in steps))]
    ratios = {
        (it["job"], it["megabytes"], it["pattern"], it["text"]): it["ratio"] for it in scaling["measured"]
    }
    for pattern in ("gpt2", "gpt4"):
        for text in ("one letter", "spaces", "^", "random letters", "random bytes"):
            rows.append((f"{text}, {pattern}", *(f"{ratios[*step, pattern, text]:.2f}" for step in steps)))
    return rows


FIGURES = [
    # Tokenizer speed, 2026-11-15
    f"GB, Linux, Python {training['machine']['python']}",
    # Training
    race_rows(training, TRAINED, three_digits, 1),
    (
        f"differ at merge {first_difference('5mb-10k', 'gigatoken')} (5 MB) and "
        f"{first_difference('100mb-10k', 'gigatoken')} (100 MB"
    ),
    f"differ at merge {first_difference('1gb-10k', 'gigatoken')}",
    # Encoding
    race_rows(encoding, ENCODED, in_seconds, 2),
    f"tokenizers; they take {time_of('tiktoken')} and {time_of('hf-tokenizers')} cold",
    f"of five processes takes {spread(True)} times as",
    f"with ours, and {spread(False)} times with the peers",
    f"largest ratio is {spread(True, max)} (ours",
    # Twice the input, at most 2.3 times the time
    f"input, at most {scaling['limit']} times the",
    scaling_rows(),
]
GIVEN = {
    "(seven for 5 MB)": "the arguments of the benchmark",
    "25 GB": "the memory of the machine",
    "2.71 bytes per GPT-2 token": "noted when it was measured",
}
