"""Documents of all formats are written as one plain text, from which they are read back unchanged."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bytewright.corpus import END_OF_TEXT, file_formats
from bytewright.corpus.readers import read_documents
from bytewright.corpus.text import write_documents
from bytewright.errors import FormatError, StorageError, UsageError
from conftest import HANG_SECONDS, RunCommand
from rejection import rejects

TALES = ["One owl.\nTwo owls!", "Zoë said: 🦉", "  indented, and <|endof not ended"]
AS_TEXT = "".join(f"{tale}\n{END_OF_TEXT}\n" for tale in TALES)


def write_lines(path: Path, texts: Sequence[str], field: str = "text") -> Path:
    data = "".join(json.dumps({field: text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_all_formats_give_the_same_text(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zstandard = pytest.importorskip("zstandard")
    parquet.write_table(arrow.table({"text": TALES}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text(AS_TEXT.replace(f"\n{END_OF_TEXT}\n", END_OF_TEXT))
    lines = write_lines(tmp_path / "a.jsonl", TALES)
    write_lines(tmp_path / "a.jsonl.gz", TALES)
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines.read_bytes()))
    for source in sorted(tmp_path.iterdir()):
        written = write_documents(source, tmp_path / "out.txt")
        assert (tmp_path / "out.txt").read_text() == AS_TEXT, source.name
        assert written.num_documents == len(TALES)
        assert written.num_bytes == len(AS_TEXT.encode())
        assert (written.num_left_out, written.num_divided) == (0, 0)


def test_several_files_are_written_in_order_with_common_progress(tmp_path: Path) -> None:
    sources = [write_lines(tmp_path / f"{number}.jsonl", [tale]) for number, tale in enumerate(TALES)]
    reports: list[tuple[int, int]] = []
    write_documents(sources, tmp_path / "out.txt", progress=lambda done, total: reports.append((done, total)))
    assert (tmp_path / "out.txt").read_text() == AS_TEXT
    total = sum(source.stat().st_size for source in sources)
    assert reports == sorted(reports)
    assert reports[-1] == (total, total)


@given(st.lists(st.text(alphabet="ab \r\n<|🦉", max_size=60), max_size=6), st.sampled_from([16, 2**20]))
def test_written_documents_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], block: int
) -> None:
    """Except for line ends around a document and for empty documents, for every block size."""
    folder = tmp_path_factory.mktemp("tales")
    source = write_lines(folder / "a.jsonl", [*texts, "the last"])
    expected = [text.strip("\r\n").encode() for text in texts if text.strip("\r\n")] + [b"the last"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_formats, "BLOCK", block)
        written = write_documents([source], folder / "a.txt")
        assert list(read_documents(folder / "a.txt")) == expected
    assert (folder / "a.txt").read_bytes() == b"".join(text + b"\n<|endoftext|>\n" for text in expected)
    assert written.num_documents == len(expected)
    assert written.num_left_out == len(texts) + 1 - len(expected)


@pytest.mark.parametrize("block", [16, 2**20])
@pytest.mark.parametrize("filler", ["x", "x ", "ß"])
def test_a_document_that_contains_the_mark_is_split_there_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, filler: str
) -> None:
    monkeypatch.setattr(file_formats, "BLOCK", block)
    for length in range(40):
        inside = f"{filler * length}a{END_OF_TEXT}b{filler * 30}"
        texts = [inside, f"ends with one{END_OF_TEXT}", END_OF_TEXT, f"{END_OF_TEXT}begins"]
        written = write_documents([write_lines(tmp_path / "a.jsonl", texts)], tmp_path / "a.txt")
        assert (written.num_documents, written.num_left_out, written.num_divided) == (4, 1, 1)
        expected = [*inside.split(END_OF_TEXT), "ends with one", "begins"]
        assert [document.decode() for document in read_documents(tmp_path / "a.txt")] == expected


def test_an_error_leaves_existing_files_unchanged(tmp_path: Path) -> None:
    good = write_lines(tmp_path / "good.jsonl", TALES)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(good.read_bytes() + b"nonsense")
    blank = write_lines(tmp_path / "blank.jsonl", ["", "\n"])
    out = tmp_path / "out.txt"
    out.write_text("mine")
    (tmp_path / "link.txt").symlink_to(good)
    before = sorted(tmp_path.iterdir())
    for sources, target, error, wrong in (
        ([], out, UsageError, None),
        ([good, bad], out, FormatError, bad),
        ([good, tmp_path / "nowhere.jsonl"], out, StorageError, tmp_path / "nowhere.jsonl"),
        ([blank], out, UsageError, blank),
        ([blank, blank], out, UsageError, blank),
        ([good], tmp_path / "link.txt", UsageError, tmp_path / "link.txt"),
        ([good], tmp_path / "new.jsonl", UsageError, tmp_path / "new.jsonl"),
        ([good], tmp_path / "new.ndjson", UsageError, tmp_path / "new.ndjson"),
        ([good], tmp_path / "new.txt.GZ", UsageError, tmp_path / "new.txt.GZ"),
    ):
        with rejects(error, path=wrong):
            write_documents(sources, target)
        assert sorted(tmp_path.iterdir()) == before
        assert out.read_text() == "mine"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Write 100 MB of compressed text with an address space that has room for a third of it."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("the size of the address space is only known on Linux")
    text = "Once upon a time there was an owl. " * 30_000
    line = json.dumps({"text": text}).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line, 1) * 100)
    program = (
        "import resource, sys\n"
        "from bytewright.corpus.text import write_documents\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + 2**25,) * 2)\n"
        "print(write_documents(['a.jsonl.gz'], 'a.txt').num_documents)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.stdout == "100\n", done.stderr


# The command


def test_the_command_reports_omitted_and_split_documents(run: RunCommand, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl.gz", [*TALES, "", f"one{END_OF_TEXT}two"], field="body")
    outcome = run("corpus", "text", source, "--field", "body", "--out", tmp_path / "a.txt")
    assert outcome.code == 0
    assert "a.txt: 5 documents, " in outcome.out
    assert outcome.err.splitlines() == [
        "Documents without text, left out: 1.",
        "Documents with <|endoftext|> inside, divided there: 1.",
    ]
    assert (tmp_path / "a.txt").read_text().startswith(AS_TEXT)
    again = run("corpus", "text", source, "--field", "body", "--out", tmp_path / "a.txt")
    assert again.code == 2
    assert again.err.endswith("a.txt exists already; choose another name, or add --replace\n")
    assert run("corpus", "text", tmp_path / "a.txt", "--out", tmp_path / "b.txt").err == ""
    assert (tmp_path / "b.txt").read_bytes() == (tmp_path / "a.txt").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "new.txt"], "FILE is missing"),
        (["nowhere.jsonl", "--out", "new.txt"], "nowhere.jsonl does not exist"),
        (["empty.jsonl", "--out", "new.txt"], "is empty"),
        (["a.jsonl", "--field", "body", "--out", "new.txt"], "a.jsonl, line 1: "),
        (["a.jsonl", "--out", "a.jsonl", "--replace"], "a.jsonl"),
        (["a.jsonl", "--out", "new.parquet"], "new.parquet: "),
    ],
)
def test_a_user_error_is_one_sentence_and_changes_no_file(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "a.jsonl", TALES)
    (tmp_path / "empty.jsonl").touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = run("corpus", "text", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
