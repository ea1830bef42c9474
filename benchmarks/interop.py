"""Compare exported models with the originals, in llama.cpp and in lm-evaluation-harness.

For each pattern: the ids of llama.cpp for every code point. For each run: its logits and greedy texts for
each type of weights, and the accuracy on questions about stories, by the harness and by Bytewright.

    pip install -e '.[interop]' accelerate peft    # the last two for the harness's class of transformers
    python benchmarks/interop.py runs/tiny demo/run --json benchmarks/out/interop.json
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import regex
import torch
import tyro
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.table import Table

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook
from bytewright.errors import UsageError
from bytewright.generate import SamplingConfig, generate
from bytewright.interop.endings import TASKS, read_questions, score_questions, write_tasks
from bytewright.interop.gguf import PRE_TOKENIZERS, WeightType, write_gguf
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.hf_llama import write_llama
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.formats import to_tokenizer_json
from bytewright.tokenizer.vocabulary import Vocabulary, find_end_of_text
from bytewright.train.run import Run

PACKAGES = ("llama-cpp-python", "gguf", "lm-eval", "datasets", "transformers", "torch", "numpy", "regex")
PROBES = (b"a", b"1", b"!", b" ", b"\n")
"""A character of each class that the patterns distinguish."""
F32 = 0
"""llama.cpp's number of the type of its key/value cache."""


@dataclass(frozen=True)
class Options:
    """The runs to compare."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Runs that were trained on the storybook."""
    prompts: int = 20
    """How many validation stories llama.cpp reads and continues."""
    questions: int = 200
    """How many questions each task of the harness has; 0: the harness is not run."""
    json: Path | None = None
    """Write the figures to this file."""


def open_in_llama_cpp(path: Path, num_tokens: int, **options: Any) -> Any:
    """Return a model of llama.cpp with a cache in F32."""
    from llama_cpp import Llama

    return Llama(
        str(path), n_ctx=num_tokens, logits_all=True, type_k=F32, type_v=F32, verbose=False, **options
    )


def make_probing_vocabulary(pattern: str) -> Vocabulary:
    """Return a vocabulary whose ids show each cut between a probe and another character.

    Its tokens are the bytes, and each probe before a first byte of a character or after a last one.
    """
    first = [*range(0x80), *range(0xC2, 0xF5)]
    last = [*range(0x80), *range(0x80, 0xC0)]
    pairs = [(probe, bytes([byte])) for probe in PROBES for byte in first]
    pairs += [(bytes([byte]), probe) for probe in PROBES for byte in last]
    merges = list({left + right: (left, right) for left, right in pairs}.values())
    tokens = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
    return Vocabulary.from_parts(dict(enumerate(tokens)), merges, [END_OF_TEXT], pattern)


def compare_ids(path: Path, pattern: str) -> dict[str, int]:
    """Count the code points whose ids differ, among those of Unicode 14 and the letters and digits since."""
    if unicodedata.unidata_version != "14.0.0":
        raise SystemExit("this comparison needs Python 3.11, which has the tables of Unicode 14")
    vocabulary = make_probing_vocabulary(pattern)
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    config = ModelConfig(vocab_size=vocabulary.size, context_length=8, d_model=8, num_layers=1, num_heads=1)
    write_gguf(TransformerLM(config), vocabulary, path)
    theirs = open_in_llama_cpp(path, 8, vocab_only=True)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    known = [character for character in characters if unicodedata.category(character) != "Cn"]
    later = regex.findall(r"[\p{L}\p{N}]", "".join(c for c in characters if unicodedata.category(c) == "Cn"))

    def count_differences(found: list[str]) -> int:
        texts = [f"a{c}a 1{c}1 !{c}! {c}\n{c}" for c in found]
        return sum(
            theirs.tokenize(text.encode(), add_bos=False, special=True) != ids.tolist()
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
        )

    counts = {
        "code_points": len(known),
        "code_points_that_differ": count_differences(known),
        "later_letters_and_digits": len(later),
        "later_letters_and_digits_that_differ": count_differences(later),
    }
    theirs.close()
    return counts


def compare_logits(
    path: Path, model: TransformerLM, tokenizer: Tokenizer, kind: WeightType, texts: list[str]
) -> dict[str, float]:
    """Export a model, and return how its logits, its loss and its greedy ids differ in llama.cpp."""
    began = time.perf_counter()
    write_gguf(model, tokenizer.vocabulary, path, weight_type=kind, replace=True)
    seconds = time.perf_counter() - began
    length = model.config.context_length
    theirs = open_in_llama_cpp(path, length)
    config = dataclasses.replace(model.config, implementation="reference")
    exact = TransformerLM(config, dtype=torch.float64)
    exact.load_state_dict(model.state_dict())
    losses, num_equal = [], 0
    largest = dict.fromkeys(("theirs - ours", "ours - float64", "theirs - float64"), 0.0)
    sampling = SamplingConfig(max_new_tokens=length // 2, temperature=0.0, num_ids=tokenizer.vocab_size)
    for text in texts:
        ids = tokenizer.encode(text)[:length]
        with torch.no_grad():
            ours, in_float64 = model(torch.tensor([ids]))[0], exact(torch.tensor([ids]))[0]
        theirs.reset()
        theirs.eval(ids)
        found = torch.from_numpy(np.array(theirs.scores[: len(ids)]))
        for name, gap in zip(largest, (found - ours, ours - in_float64, found - in_float64), strict=True):
            largest[name] = max(largest[name], gap.abs().max().item())
        targets = torch.tensor(ids[1:])
        losses.append(
            [torch.nn.functional.cross_entropy(logits[:-1], targets).item() for logits in (ours, found)]
        )
        prompt = ids[: length // 3]
        (completion,) = generate(model, [prompt], sampling)
        written = list(itertools.islice(theirs.generate(prompt, temp=0.0), sampling.max_new_tokens))
        num_equal += written == completion.ids
    theirs.close()
    our_loss, their_loss = np.mean(losses, axis=0).tolist()
    return {
        "bytes": path.stat().st_size,
        "export_seconds": seconds,
        "largest_difference_of_logits": largest["theirs - ours"],
        "our_difference_from_float64": largest["ours - float64"],
        "their_difference_from_float64": largest["theirs - float64"],
        "our_loss": our_loss,
        "their_loss": their_loss,
        "equal_greedy_texts": num_equal,
        "greedy_texts": len(texts),
    }


def run_harness(folder: Path, model: str, arguments: str, tasks: Path) -> dict[str, float]:
    """Return the accuracy of each task by lm-evaluation-harness, offline."""
    program = Path(sys.executable).with_name("lm_eval")
    command = [str(program), "--model", model, "--model_args", arguments, "--tasks", str(tasks)]
    command += ["--batch_size", "32", "--device", "cpu", "--output_path", str(folder / "results.json")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    newest = max(folder.glob("results*.json"), key=lambda path: path.stat().st_mtime)
    results = json.loads(newest.read_text())["results"]
    return {task: results[task]["acc,none"] for task in TASKS}


def export_to_transformers(model: TransformerLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder that the harness reads with its class for `transformers`."""
    write_llama(
        model,
        folder / "hf",
        tokenizer_json=to_tokenizer_json(tokenizer.vocabulary),
        end_of_text=find_end_of_text(tokenizer.vocabulary),
    )


def compare_run(run: Run, options: Options, tasks: Path, folder: Path) -> dict[str, Any]:
    """Return all figures of one run."""
    model, tokenizer = run.load_model(), run.tokenizer
    stories = itertools.islice(Storybook.load().stories(seed=2, split="validation"), options.prompts)
    texts = [story.text for story in stories]
    file = folder / "model.gguf"
    figures: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "context_length": model.config.context_length,
        "architecture": "qwen3" if model.config.qk_norm else "llama",
        "types": {kind: compare_logits(file, model, tokenizer, kind, texts) for kind in get_args(WeightType)},
    }
    if not options.questions:
        return figures
    scores = {
        task: score_questions(model, tokenizer, read_questions(tasks / f"{task}.jsonl")) for task in TASKS
    }
    distances: dict[int, list[bool]] = {}
    for score in scores.values():
        for question, is_correct in zip(score.questions, score.is_correct, strict=True):
            distances.setdefault(question.distance, []).append(is_correct)
    figures["by_distance"] = {str(distance): distances[distance] for distance in sorted(distances)}
    figures["accuracy"] = {
        "bytewright": {task: score.accuracy for task, score in scores.items()},
        "lm_eval": run_harness(folder, "bytewright", f"run={run.path}", tasks),
    }
    try:
        export_to_transformers(model, tokenizer, folder)
    except UsageError as reason:
        figures["not_exported_to_transformers"] = str(reason)
    else:
        figures["accuracy"]["lm_eval_of_transformers"] = run_harness(
            folder, "hf", f"pretrained={folder / 'hf'},dtype=float32", tasks
        )
    return figures


def print_figures(name: str, figures: dict[str, Any]) -> None:
    """Print the figures of one run as tables."""
    console = wide_console()
    table = Table(title=f"{name} in llama.cpp", title_justify="left")
    for heading in ("type", "bytes", "largest difference of logits", "loss", "equal greedy texts"):
        table.add_column(heading, justify="right")
    for kind, compared in figures["types"].items():
        equal = f"{compared['equal_greedy_texts']} of {compared['greedy_texts']}"
        difference, loss = f"{compared['largest_difference_of_logits']:.1e}", f"{compared['their_loss']:.4f}"
        table.add_row(kind, f"{compared['bytes']:,}", difference, loss, equal)
    console.print(table)
    if "accuracy" not in figures:
        return
    table = Table(title=f"{name}: accuracy", title_justify="left")
    for heading in ("by", *TASKS):
        table.add_column(heading)
    for by, accuracy in figures["accuracy"].items():
        table.add_row(by, *(f"{accuracy[task]:.3f}" for task in TASKS))
    console.print(table)


def main(options: Options) -> None:
    """Compare all runs and print the figures."""
    about = {
        "machine": describe_machine(),
        "commit": source_commit(),
        "versions": installed_versions(PACKAGES),
        "questions_per_task": options.questions,
    }
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        ids = {
            name: compare_ids(Path(scratch) / f"{name}.gguf", pattern)
            for pattern, name in PRE_TOKENIZERS.items()
        }
        wide_console().print(ids)
        tasks = Path(scratch) / "tasks"
        if options.runs and options.questions:
            write_tasks(tasks, options.questions)
        for path in options.runs:
            folder = Path(scratch) / f"run-{len(runs)}"
            folder.mkdir()
            runs[str(path)] = compare_run(Run.open(path.absolute()), options, tasks, folder)
            print_figures(str(path), runs[str(path)])
    if options.json:
        write_report(options.json, {**about, "ids": ids, "runs": runs})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
