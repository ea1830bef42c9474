"""Compute the figures of 2026-11-18-training-kernels.md from its two measurements.

The tables of bytes and of predictions were written before the measurements, so nothing computes them: they
are in GIVEN, row by row.
"""

from __future__ import annotations

from statistics import median

from records import percent, result

measured = result("2026-11-18-training-kernels.json")
steps = {
    (part, row["shape"], row["label"]): row for part in ("first", "second") for row in measured[part]["rows"]
}
alone = {row["name"]: row["ms"] for row in measured["first"]["checks"] if "ms" in row}
NAMES = {"12x768": "12 × 768", "base": "base", "8x1024": "8 × 1,024"}
PREDICTED = {"12x768": ("1.17", "1.20"), "base": ("1.26", "1.30"), "8x1024": ("1.08", "1.15")}
ROTATION = ("triton_poi_fused__to_copy_add_cat_mul_neg", "triton_poi_fused__to_copy__unsafe_view_add_cat")
LIBRARIES = ("nvjet", "cudnn", "void cudnn")


def step(part, shape, label):
    """Return the median milliseconds of a step."""
    return steps[part, shape, label]["ms"]


def ratio(part, shape, label):
    """Return the median over rounds of the time of a step, divided by that of the new one."""
    times = (steps[part, shape, name]["all_ms"] for name in (label, "new"))
    return median(ours / theirs for ours, theirs in zip(*times, strict=False))


def milliseconds(part, shape, label):
    return f"{step(part, shape, label):.{2 if shape == 'base' else 1}f} ms"


def kernels(part, shape, label, *starts):
    """Return the milliseconds per step of all kernels whose names have one of these beginnings."""
    profile = steps[part, shape, label]["profile"]
    return sum(row["ms"] for row in profile if row["name"].startswith(starts))


def rotation(part, label):
    """Return the milliseconds of the rotation of q and k in a profile of 12 layers.

    The new kernels have the names of the gate's kernels, so those of the old version are subtracted.
    """
    gate = kernels(part, "12x768", "old", "_forward", "_backward")
    if label == "new":
        return kernels(part, "12x768", "new", "_forward", "_backward") - gate
    return kernels(part, "12x768", "old", *ROTATION, "triton_poi_fused_cat_transpose")


def gain(switch):
    """Return the milliseconds that a switch adds to a step of 4 layers in the first measurement."""
    return step("first", "4x768", "new") - step("first", "4x768", f"without {switch}")


def first_rows():
    yield "shape", "all switches", "before", "plain baseline", "plain ÷ all", "plain ÷ before"
    for shape, name in NAMES.items():
        times = [milliseconds("first", shape, label) for label in ("new", "old", "plain")]
        before = step("first", shape, "plain") / step("first", shape, "old")
        yield name, *times, f"{ratio('first', shape, 'plain'):.2f}", f"{before:.2f}"


def switch_rows():
    yield "switch", "predicted, 12 × 768", "found", "decision"
    embedding = f"{alone['embedding 50257 old']:.2f} → {alone['embedding 50257 segments of 32']:.2f} ms"
    # 2.135 is rounded up
    turned = f"{rotation('first', 'old') + 1e-9:.2f} → {rotation('first', 'new'):.2f} ms"
    rows = kernels("first", "12x768", "new", "_row") - kernels("first", "12x768", "old", "_row")
    whole = kernels("first", "base", "new", "_whole_row") - kernels("first", "base", "old", "_row")
    gates = [min_of(f"gate 768 {way} ", "/") for way in ("forward", "backward")]
    apart = [alone[f"gate 768 {way} separate"] for way in ("forward", "backward")]
    grouped, normed = (ratio("first", "base", label) for label in ("4 kv heads", "qk norm"))
    yield (
        "`embedding`",
        "-0.9 ms",
        f"{gain('embedding'):.1f} ms (4 × 768); the kernel alone {embedding}",
        "always on",
    )
    yield (
        "`heads`",
        "-1 ms",
        f"{gain('heads'):.2f} ms (4 × 768, 4 layers); {turned} in the profile of 12 layers",
        "always on",
    )
    yield "`head`", "-0.3 ms", f"{gain('head'):+.2f} ms", "corrected, see below"
    yield (
        "`loss`",
        "-0.7 ms",
        f"{abs(gain('loss')):.0f}; {rows:+.1f} ms in the profile of 12 × 768, {whole:+.2f} ms at base",
        "whole rows deleted; corrected, see below",
    )
    yield (
        "`attention`",
        "–",
        f"grouped heads {grouped:.3f} of the plain step; QK-norm {normed:.3f}",
        "corrected, see below",
    )
    yield (
        "gate in the product",
        "-1 to -2 ms",
        f"forward {gates[0]:.3f} ms against {apart[0]:.3f} ms separately,"
        f" backward {gates[1]:.3f} against {apart[1]:.3f} ms",
        "deleted",
    )


def min_of(start, mark):
    """Return the shortest time of the variants of a kernel."""
    return min(ms for name, ms in alone.items() if name.startswith(start) and mark in name)


def second_rows():
    yield "shape", "new", "before", "plain baseline", "plain ÷ new", "predicted", "target"
    for shape, name in NAMES.items():
        if ("second", shape, "new") in steps:
            times = [milliseconds("second", shape, label) for label in ("new", "old", "plain")]
            yield name, *times, f"{ratio('second', shape, 'plain'):.2f}", *PREDICTED[shape]
        else:
            found = f"{ratio('first', shape, 'plain'):.2f} (first measurement)"
            yield name, "–", "–", "–", found, *PREDICTED[shape]


def variant_rows():
    first, late = "first measurement", "first measurement; the corrected kernel is not timed"
    normed = (
        f"{ratio('second', 'base', 'qk norm'):.3f} ({ratio('first', 'base', 'qk norm'):.3f} in the {first})"
    )
    yield "variant", "step ÷ new", "limit"
    yield "base, 4 kv heads", f"{ratio('second', 'base', '4 kv heads'):.3f}", "1.03"
    yield "base, QK-norm", normed, "1.03"
    for name, shape, label, note in (
        ("4 × 768, 4 kv heads", "4x768", "4 kv heads", first),
        ("3 × 1,024, 2 kv heads", "3x1024", "2 kv heads", first),
        ("4 × 768, QK-norm", "4x768", "qk norm", late),
        ("3 × 1,024, QK-norm", "3x1024", "qk norm", late),
    ):
        yield name, f"{ratio('first', shape, label):.3f} ({note})", "1.03"
    blas, chunks = (f"{ratio('second', '12x768', label):.3f}" for label in ("cublasLt", "larger chunks"))
    yield "12 × 768, cuBLASLt preferred to cuBLAS", blas, "deleted"
    yield "12 × 768, chunks of 16,384 rows of logits", chunks, "not used: 0.7 GiB more memory"


def shared():
    """Return the milliseconds of the library kernels that both profiles of the second measurement have."""
    profiles = [
        {row["name"]: row["ms"] for row in steps["second", "12x768", label]["profile"]}
        for label in ("new", "old")
    ]
    names = [name for name in profiles[0].keys() & profiles[1].keys() if name.startswith(LIBRARIES)]
    return [sum(profile[name] for name in names) for profile in profiles]


new, old = shared()
rounds = {len(steps["second", "base", label]["all_ms"]) for label in ("old", "plain")}
assert all(row["passed"] and row.get("same_bits", True) for row in measured["second"]["checks"])
product = "nvjet_sm90_{}_192x192_64x3_1x2_h_{}_coopB_NTN"
product_now = kernels("second", "12x768", "new", product.format("tss", "badd"))
product_before = kernels("second", "12x768", "old", product.format("tst", "bz"))
sums_before = kernels("second", "12x768", "old", "void at::native::unrolled_elementwise_kernel")
embedding_before = kernels("second", "12x768", "old", "_sum_rows")
rows_now, rows_before = (kernels("second", "12x768", label, "_row") for label in ("new", "old"))
at_base = kernels("first", "base", "old", "_sum_rows") - kernels(
    "first", "base", "new", "_sum_segments", "_add_carried"
)
cutlass = kernels("first", "12x768", "new", "void cutlass")
head_before = kernels("first", "12x768", "old", product.format("tst", "bz"))
head_sums = kernels("first", "12x768", "old", "void at::native::unrolled_elementwise_kernel")
whole_row, row = (alone[f"row 32768x10000 {name}"] for name in ("16384/8/True/False", "2048/8/False/False"))
normed, plain = (alone[f"heads 1024 12/12x64 8x8 norm={on} backward"] for on in (True, False))
in_a_loop = 1 - alone["row 8192x50304 8192/32/False/False"] / alone["row 8192x50304 2048/8/False/False"]


def trace_rows():
    yield ("shape", "one step, ms", "in the trace, ms", "a kernel runs, ms", "share")
    for shape in ("12x768", "base"):
        row = measured["trace"][shape]
        share = f"{100 * row['busy_ms'] / row['span_ms']:.0f} %"
        times = f"{median(row['step_ms']):.1f}", f"{row['span_ms']:.1f}", f"{row['busy_ms']:.1f}"
        yield (shape.replace("x", " × "), *times, share)


FIGURES = [
    list(trace_rows()),
    f"at commit {measured['trace']['commit']}",
    list(first_rows()),
    list(switch_rows()),
    f"{cutlass:.1f} ms instead of {head_before:.1f} ms plus {head_sums:.1f} ms for the sums",
    f"{whole_row:.2f} ms instead of {row:.2f} ms",
    f"{normed:.2f} ms instead of {plain:.2f} ms per layer",
    list(second_rows()),
    f"measured in {min(rounds)} of 8 rounds",
    list(variant_rows()),
    f"Gradient of the embeddings: {embedding_before:.2f} ms before",
    f"Rotation: {rotation('second', 'old'):.2f} ms before; {rotation('second', 'new'):.2f} ms now",
    f"the separate sums took {sums_before:.2f} ms and are gone",
    f"the product takes {product_now:.2f} instead of {product_before:.2f} ms",
    f"Rows of logits: {rows_now:.2f} ms, before {rows_before:.2f} ms",
    f"gained {percent(in_a_loop)} in a loop of this kernel alone",
    f"took {percent(new / old - 1, 1)} longer in the new profile: {new:.1f} instead of {old:.1f} ms",
    f"cancels {new - old:.1f} of the",
    f"the embeddings ({at_base:.2f} ms in the first profile)",
]
WRITTEN_BEFORE = [
    "| base: 4 layers × 512, heads of 32, context 256, vocabulary 10,000 | 65,536 | 17 ms | 1.26 | 1.30 |",
    "| 12 layers × 768, heads of 64, context 1,024, vocabulary 50,257 | 32,768 | 58 ms | 1.11 | 1.20 |",
    "| 8 layers × 1,024, heads of 128, context 2,048, vocabulary 10,000 | 32,768 | 62 ms | 1.06 | 1.15 |",
    "| matrix products | 24.3 TFLOP | 31 at 790 TFLOP/s | 36 |",
    "| attention (cuDNN) | 2.2 TFLOP | – | 7.7 |",
    "| gate, forward and backward | 12 × 1.07 GB | 3.0 | 3.0 |",
    "| loss: logits read twice, written once | 9.9 GB | 2.3 | 2.7 |",
    "| norms with residual sums, both ways | 24 × 0.4 GB | 2.3 | 2.6 |",
    "| rotation of q and k, and joining their gradients | 12 × 0.5 GB | 1.4 | about 2.8 (not listed "
    "separately) |",
    "| AdamW: 28 bytes per weight | 4.5 GB | 1.1 | – |",
    "| copies of gradients, casts, norm of the gradients | 2.6 GB | 0.6 | – |",
    "| gradient of the head, added in bfloat16 and float32 over 4 chunks | 1.9 GB | 0.45 | – |",
    "| gradient of the embeddings | 0.25 GB | 0.06 | 1.2 with the lookup |",
    "| switch | change | 12 × 768 | base |",
    "| `embedding` | Sorted positions are cut into chunks of 32; each program sums the segments of one "
    "chunk. Before, 600,000 programs were started, most for ids without a position. | -0.9 ms | -0.12 ms "
    "|",
    "| `loss` | Rows up to 16,384 logits are read once and stay in registers. Longer rows: so few "
    "programs per multiprocessor that the second read hits the L2 cache. | -0.7 ms | -0.15 ms |",
    "| `head` | The gradient of the head is added in float32 by the product itself (`addmm` with "
    "`out_dtype`). | -0.3 ms | -0.1 ms |",
    "| `heads` | Norm and rotation of q and k in one kernel; its backward pass writes the joined "
    "gradient. | -1 ms | – |",
    "| `attention` | Our attention for short contexts supports grouped heads and QK-norm. | – | within 3 "
    "% of plain heads |",
    "| (separate) | A product that computes the gate in its epilogue, if Triton's product is within 10 % "
    "of cuBLAS | -1 to -2 ms | -0.5 ms |",
    "| change | 12 × 768 | base |",
    "| `embedding` and `heads` on, whole rows deleted | -1.6 ms | -0.2 ms |",
    "| The gradient of the head is summed over the padded rows, in float32, by the product | -0.5 ms | 0 |",
    "| Loads of logits end at the padded width; long rows in blocks of 8,192 | -0.5 ms | 0 |",
    "| Attention with the registers of the version before (168, and 60 bytes spilled) | – | ±0 against "
    "before |",
    "| Norms of queries are differentiated after the loop over keys, with smaller blocks: no spills | – | "
    "QK-norm at most 1.04 |",
    "| `heads` with norms: one block of 8 tokens × 4 heads per program | QK-norm at most 1.02 | – |",
]
"""Rows of tables that were written before the measurements."""
GIVEN = dict.fromkeys(WRITTEN_BEFORE, "written before the measurements") | {
    "Bytes at 12 layers × 768": "the shape",
    "is 50 MB in bfloat16. The card copies 4.3 TB/s": "the shape, and a copy on the card",
    "the base shape (268 MB in 0.064 ms)": "an earlier profile",
    "torch 2.11, Triton 3.6": "the versions of the machine",
    "at 4 layers × 768": "the arguments of the benchmark",
    "sliced to 50,257 rows": "the vocabulary",
    "At 10,000 rows": "the vocabulary",
    "ended at 50,257": "the vocabulary",
    "174 registers per thread instead of 168": "the assembler's report",
    "spilled 88 bytes per thread instead of 60, with norms 500": "the assembler's report",
    "One program handled 128 tokens": "the kernel of that version",
    "Expected steps: 57.5 ms (1.17), 17.3 ms (1.26) and 52.2 ms (1.08)": "written before the measurement",
    "The targets of 1.2 and 1.15": "the first table",
    "At 12 × 768 they take 33.4 and 8.8 ms, together 42 of 57 ms": "a profile",
    "at 8 × 1,024 39 of 49 ms": "a profile",
    "at 75 to 100 % of the memory bandwidth": "a profile",
    "before 8 × 1,024, 4 × 768, 3 × 1,024": "the shapes of the benchmark",
    "Outcomes at 12 × 768": "the shape",
    "At 12 × 768 the step that was measured here would need 56.5 ms to be 1.2": "67.8 ms divided by 1.2",
    "alone take 44 ms": "the longest kernels of the trace",
    "below 0.1 ms now": "not among the 30 longest kernels of the profile",
    "prediction of -0.5 ms": "the table of predictions",
    "of the 1.9 ms that the others save": "the sum of the lines above",
    "within the noise of 1 %": "the spread of the rounds",
    "(3.2 TB/s at width 768, where the compiler pads rows to 1,024)": "a profile",
}
