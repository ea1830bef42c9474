"""`bytewright tokenizer train`, `encode`, `decode` and `convert`."""

from __future__ import annotations

import codecs
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import tyro

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError
from bytewright.formatting import format_bytes, format_seconds
from bytewright.storage import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bytewright.data.dataset import ShardedIds
    from bytewright.data.tokenfile import Ids
    from bytewright.tokenizer import Phase, Tokenizer, TrainingResult
    from bytewright.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class TrainTokenizer:
    """Learn a byte-level BPE vocabulary from text files or folders of text files.

    A pattern in quotes means the files that match it; - means standard input. Shows the progress with the
    remaining time, then prints a table of the phases.

    For example:
      bytewright tokenizer train stories.txt --out stories-10k --vocab-size 10000
      bytewright tokenizer train books/ notes.txt --out mine --vocab-size 32000 --pattern gpt4
      bytewright tokenizer train chat.txt --out chat --vocab-size 8000 --special-tokens '<|user|>' '<|end|>'
      bytewright tokenizer train /shared/web/ --out web-32k --vocab-size 32000 --cluster tcp://head:8786
    """

    sources: options.Files
    """Text files, folders, patterns, or -; `bytewright corpus text` converts other formats."""
    out: options.OutputFolder
    """The folder of the tokenizer."""
    vocab_size: int
    """The number of tokens: 256 bytes, the merges, and the special tokens."""
    special_tokens: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[TOKEN ...]")] = (END_OF_TEXT,)
    """Tokens that are never split and never counted; the option without a value means none."""
    pattern: str = "gpt2"
    """The pattern that splits text into words before merging: gpt2, gpt4, or a Rust regular expression."""
    min_count: int = 1
    """Stop when no pair occurs at least this often."""
    clean: options.Clean = False
    num_threads: options.NumThreads = None
    cluster: options.Cluster = None
    replace: options.Replace = False

    def run(self) -> None:
        """Check the arguments, train, write the tokenizer, and print the phases."""
        sources = options.require_some(self.sources, "FILE", "tokenizer train")
        options.require_at_least(1, self.min_count, "--min-count")
        options.require_at_least(1, self.num_threads, "--num-threads")
        atomic.check_target(self.out, folder=True, replace=self.replace)

        from bytewright.tokenizer.formats import write_bytewright

        training = self._train(sources) if self.cluster is None else self._train_on(self.cluster)
        started = time.perf_counter()
        write_bytewright(training.vocabulary, self.out, replace=self.replace)
        print_training(training, time.perf_counter() - started, self.out)

    def _train(self, sources: tuple[str, ...]) -> TrainingResult:
        from bytewright.tokenizer import train_tokenizer

        with options.open_texts(sources, clean=self.clean, copy=True) as files, console.progress() as show:
            return train_tokenizer(
                files,
                self.vocab_size,
                self.special_tokens,
                pattern=self.pattern,
                min_count=self.min_count,
                num_threads=self.num_threads,
                progress=show,
            )

    def _train_on(self, cluster: str) -> TrainingResult:
        from bytewright.cli.texts.cluster import check_options, train_tokenizer_on

        check_options(clean=self.clean, num_threads=self.num_threads)
        return train_tokenizer_on(
            cluster,
            self.sources,
            self.vocab_size,
            self.special_tokens,
            pattern=self.pattern,
            min_count=self.min_count,
        )


def print_training(training: TrainingResult, seconds_writing: float, out: Path) -> None:
    """Print the time of each phase, then the size of the result."""
    from bytewright.tokenizer import Phase

    phases = [*training.phases, Phase(name="write", seconds=seconds_writing, wall_seconds=seconds_writing)]
    total = sum(phase.wall_seconds for phase in phases)
    rows = []
    for phase in phases:
        wall, share = format_seconds(phase.wall_seconds), f"{phase.wall_seconds / total:.0%}"
        rows.append(
            (phase.name, wall, share, format_seconds(phase.seconds), _format_throughput(phase, training))
        )
    throughput = f"{format_bytes(training.corpus_bytes / total)}/s"
    rows.append(("all", format_seconds(total), "100%", "", throughput))
    console.print_table(("phase", "time", "share", "of all threads", "throughput"), rows)
    console.print_line(
        f"{training.num_words:,} words, {training.num_distinct_words:,} of them distinct;"
        f" {len(training.vocabulary.merges):,} merges;"
        f" peak memory {format_bytes(training.peak_memory_bytes)}."
    )
    if training.stopped:
        console.print_line(training.stopped)
    console.print_line(f"Wrote {out}: {len(training.vocabulary.tokens):,} tokens.")


def _format_throughput(phase: Phase, training: TrainingResult) -> str:
    if phase.name in ("connect", "write") or not phase.wall_seconds:
        return ""
    if phase.name == "merge":
        return f"{len(training.vocabulary.merges) / phase.wall_seconds:,.0f} merges/s"
    return f"{format_bytes(training.corpus_bytes / phase.wall_seconds)}/s"


@dataclass(frozen=True, kw_only=True)
class EncodeText:
    """Convert text to token ids: files to a token file, or a short text to numbers on the terminal.

    A token file is a .npy array (uint16 if the vocabulary allows) with a manifest in FILE.json. A folder
    means all files below it; a pattern in quotes means the files that match it; - means standard input.
    Between two files the end token is added, unless the first ends with it. With --cluster, the output is a
    dataset: a folder of token files that every command reads as one. Encoding into it again skips what is
    complete.

    For example:
      bytewright tokenizer encode stories-10k stories.txt --out stories.npy
      bytewright tokenizer encode stories-10k books/ 'extra-*.txt' --clean --out books.npy
      zcat stories.txt.gz | bytewright tokenizer encode stories-10k - --out stories.npy
      bytewright tokenizer encode stories-10k --text 'Once upon a time'
      bytewright tokenizer encode web-32k /shared/web/ --out /shared/web-tokens --cluster tcp://head:8786
    """

    tokenizer: options.TokenizerPath
    sources: options.TextSources = ()
    """The text files to encode, folders, patterns, or - for standard input; needs --out."""
    out: options.FileOption = None
    """The token file to write; with --cluster the folder of the dataset."""
    clean: options.Clean = False
    text: options.GivenText = None
    """Encode this text instead, and print its ids."""
    num_threads: options.NumThreads = None
    cluster: options.Cluster = None
    replace: options.Replace = False

    def run(self) -> None:
        """Encode a text or a file."""
        options.require_at_least(1, self.num_threads, "--num-threads")
        if self.text is not None:
            if self.sources or self.out is not None:
                raise UsageError("give either --text or a file with --out, not both")
            print(*options.load_tokenizer(self.tokenizer).encode(options.encode_text(self.text)))
            return
        if not self.sources or self.out is None:
            raise UsageError("give a file and --out, or --text")
        if self.cluster is not None:
            from bytewright.cli.texts.cluster import check_options, encode_on_cluster

            check_options(clean=self.clean, num_threads=self.num_threads)
            tokenizer = options.load_tokenizer(self.tokenizer)
            encode_on_cluster(self.cluster, tokenizer, self.sources, self.out, replace=self.replace)
            return
        with options.open_texts(self.sources, clean=self.clean, copy=True) as files:
            self._encode_files(files, self.out)

    def _encode_files(self, files: list[Path], out: Path) -> None:
        from bytewright.storage.manifest import manifest_path_of

        written = (out, manifest_path_of(out))
        for source in files:
            atomic.check_not_input(source, *written)
        for path in written:
            atomic.check_target(path, replace=self.replace)
        tokenizer = options.load_tokenizer(self.tokenizer)

        num_bytes = sum(file.stat().st_size for file in files)
        started = time.perf_counter()
        with console.phase_progress("encode", "bytes") as progress:
            tokens = tokenizer.encode_file(files, out, num_threads=self.num_threads, progress=progress)
        seconds = time.perf_counter() - started
        console.print_line(
            f"Wrote {out}: {len(tokens):,} tokens ({tokens.manifest.dtype}),"
            f" {num_bytes / len(tokens):.2f} bytes per token; {format_bytes(num_bytes)}"
            f" in {format_seconds(seconds)}, {format_bytes(num_bytes / seconds)}/s."
        )


@dataclass(frozen=True, kw_only=True)
class EncodePairs:
    """Convert JSON lines of prompts and completions to token ids with a mask: only completions are learned.

    Each line is an object such as {"prompt": "2+2=", "completion": "4"}; a compressed file (.gz, .zst) works
    as well. The token file has one document per pair, ended by the end token. Training and evaluation on it
    count the tokens of the completions and the end tokens after them. Use windows = "documents" in [data].

    For example:
      bytewright tokenizer encode-pairs stories-10k questions.jsonl --out questions.npy
      bytewright tokenizer encode-pairs stories-10k chat.jsonl.gz --prompt user --completion reply --out c.npy
    """

    tokenizer: options.TokenizerPath
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file of JSON lines."""
    out: options.NewFile
    """The token file to write."""
    prompt: str = "prompt"
    """The field of the prompt, which may be empty."""
    completion: str = "completion"
    """The field of the completion."""
    num_threads: options.NumThreads = None
    replace: options.Replace = False

    def run(self) -> None:
        """Encode the file, and print how many tokens count."""
        from bytewright.storage.manifest import manifest_path_of

        options.require_at_least(1, self.num_threads, "--num-threads")
        options.require_file(self.source)
        for path in (self.out, manifest_path_of(self.out)):
            atomic.check_target(path, replace=self.replace)
        tokenizer = options.load_tokenizer(self.tokenizer)

        from bytewright.tokenizer.pairs import encode_pairs

        with console.phase_progress("encode", "bytes") as progress:
            tokens = encode_pairs(
                tokenizer,
                self.source,
                self.out,
                prompt=self.prompt,
                completion=self.completion,
                num_threads=self.num_threads,
                progress=progress,
            )
        manifest = tokens.manifest
        num_pairs = "1 pair" if manifest.num_documents == 1 else f"{manifest.num_documents:,} pairs"
        console.print_line(
            f"Wrote {self.out}: {num_pairs}, {len(tokens):,} tokens;"
            f" {manifest.num_counted:,} of them count in the loss."
        )


IDS_PER_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class DecodeIds:
    """Convert token ids back to the exact bytes that they stand for.

    A token file that was encoded with another tokenizer is an error.

    For example:
      bytewright tokenizer decode stories-10k stories.npy --out again.txt
      bytewright tokenizer decode stories-10k stories.npy | head
      bytewright tokenizer decode stories-10k --ids 430 511 32
    """

    tokenizer: options.TokenizerPath
    source: options.OptionalFile = None
    """The token file or dataset to decode."""
    out: options.FileOption = None
    """The text file to write; standard output by default."""
    ids: Annotated[tuple[int, ...], options.arg("ID [ID ...]")] = ()
    """Decode these ids instead."""
    replace: options.Replace = False

    def run(self) -> None:
        """Decode ids or a file to stdout or to a file."""
        if (self.source is None) == (not self.ids):
            raise UsageError("give either a token file or --ids")
        if self.source is not None:
            options.require_source(self.source)
        if self.out is not None:
            if self.source is not None:
                from bytewright.storage.manifest import manifest_path_of

                for path in (self.source, manifest_path_of(self.source)):
                    atomic.check_not_input(path, self.out)
            atomic.check_target(self.out, replace=self.replace)
        tokenizer = options.load_tokenizer(self.tokenizer)
        ids = self._read_ids(tokenizer)
        if self.out is None:
            if sys.stdout.isatty():
                decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
                for chunk in _decode_chunks(tokenizer, ids):
                    console.write_model_text(decoder.decode(chunk))
                console.write_model_text(decoder.decode(b"", final=True) + "\n")
            else:
                for chunk in _decode_chunks(tokenizer, ids):
                    _write_all(sys.stdout.buffer, chunk)
            return
        with atomic.write_stream(self.out) as stream:
            for chunk in _decode_chunks(tokenizer, ids):
                stream.write(chunk)
        size = f"{self.out.stat().st_size:,} bytes"
        console.print_line(f"Wrote {self.out}: {size} from {len(ids):,} tokens.")

    def _read_ids(self, tokenizer: Tokenizer) -> Sequence[int] | Ids | ShardedIds:
        if self.source is None:
            return self.ids
        from bytewright.data import TokenFile

        tokens = TokenFile.open(self.source, verify=True)
        tokens.require_tokenizer(tokenizer.fingerprint)
        return tokens.tokens


def _write_all(stream: BinaryIO, data: bytes) -> None:
    """Write all bytes: an unbuffered stdout (python -u) accepts only what fits into the pipe."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def _decode_chunks(tokenizer: Tokenizer, ids: Sequence[int] | Ids | ShardedIds) -> Iterator[bytes]:
    """Yield decoded chunks, so that memory does not grow with the file."""
    with console.phase_progress("decode", "tokens") as progress:
        for start in range(0, len(ids), IDS_PER_CHUNK):
            yield tokenizer.decode_bytes(ids[start : start + IDS_PER_CHUNK])
            progress(min(start + IDS_PER_CHUNK, len(ids)), len(ids))


@dataclass(frozen=True, kw_only=True)
class ConvertTokenizer:
    """Convert a tokenizer from any supported format to another.

    bytewright and gpt2 (vocab.json, merges.txt) are folders; huggingface (tokenizer.json) and tiktoken
    (ranks) are files. Files of gpt2 and tiktoken do not list special tokens, and files of tiktoken contain no
    pattern: pass these as options. Anything else that a format cannot represent is an error.

    For example:
      bytewright tokenizer convert stories-10k --to huggingface --out tokenizer.json
      bytewright tokenizer convert gpt2/ --special-tokens '<|endoftext|>' --to bytewright --out gpt2-ours
      bytewright tokenizer convert ranks.tiktoken --pattern gpt4 --to huggingface --out tokenizer.json
    """

    tokenizer: options.TokenizerPath
    to: Literal["bytewright", "gpt2", "huggingface", "tiktoken"]
    """The format to write."""
    out: options.OutputPath
    """The folder or file to write."""
    special_tokens: Annotated[tuple[str, ...], options.arg("TOKEN [TOKEN ...]")] = ()
    """The special tokens, for formats that do not list them."""
    pattern: Annotated[str | None, options.arg("PATTERN", "(default: gpt2)")] = None
    """The pattern that splits text into words, for tiktoken ranks: gpt2, gpt4, or a regular expression."""
    replace: options.Replace = False

    def run(self) -> None:
        """Read one format and write another."""
        from bytewright.tokenizer import formats

        if self.to == "huggingface" and self.out.suffix != ".json":
            raise UsageError.at(self.out, "the name must end in .json, which identifies this format")
        if self.to == "tiktoken" and self.out.suffix == ".json":
            raise UsageError.at(self.out, "the name must not end in .json, which identifies huggingface")
        atomic.check_target(self.out, folder=self.to in ("bytewright", "gpt2"), replace=self.replace)
        vocabulary = options.load_vocabulary(self.tokenizer, self.special_tokens, self.pattern)
        match self.to:
            case "bytewright":
                formats.write_bytewright(vocabulary, self.out, replace=self.replace)
            case "gpt2":
                write_gpt2_folder(vocabulary, self.out, replace=self.replace)
            case "huggingface":
                formats.write_huggingface(vocabulary, self.out)
            case "tiktoken":
                formats.write_tiktoken(vocabulary, self.out)
        written = vocabulary.ids_of_ordinary_tokens if self.to == "tiktoken" else vocabulary.tokens
        console.print_line(f"Wrote {self.out}: {len(written):,} tokens in the {self.to} format.")
        if self.to == "huggingface" and (warning := formats.warn_of_pattern(vocabulary)) is not None:
            console.print_remark(warning)
        if self.to == "tiktoken":
            console.print_line(describe_lost_settings(vocabulary))
        if self.to == "gpt2" and vocabulary.special_tokens:
            console.print_line(
                f"The files do not mark the special tokens {list_special_tokens(vocabulary)}; programs that"
                " read them need these as options. Without them, such a token in a text is split."
            )


def describe_lost_settings(vocabulary: Vocabulary) -> str:
    """Return which settings a file of ranks does not contain, so that its readers must supply them."""
    specials = list_special_tokens(vocabulary)
    lost = f"the pattern ({vocabulary.pattern})" + (f" and the special tokens {specials}" if specials else "")
    return f"The file does not contain {lost}; programs that read it need them as options."


def list_special_tokens(vocabulary: Vocabulary) -> str:
    """Return the special tokens with their ids, in the order of these."""
    by_id = sorted(vocabulary.special_tokens.items(), key=lambda item: item[1])
    return ", ".join(f"{special} (id {id})" for special, id in by_id)


def write_gpt2_folder(vocabulary: Vocabulary, out: Path, *, replace: bool) -> None:
    """Write the two files of GPT-2 as one folder, so that they are replaced together."""
    from bytewright.tokenizer import formats

    with tempfile.TemporaryDirectory() as folder, atomic.write_folder(out, replace=replace) as writer:
        paths = [Path(folder) / name for name in formats.GPT2_FILES]
        formats.write_gpt2(vocabulary, *paths)
        for path in paths:
            writer.write_bytes(path.name, path.read_bytes())
