"""Run one fuzz target, or all of them: `python fuzz/readers/run.py [NAME] [--seconds N]`.

With atheris installed this is coverage-guided fuzzing by libFuzzer; without it, plain mutation of the seeds,
which finds less but needs nothing. The corpus grows in `fuzz/corpus/`, and an input that breaks a reader is
kept in `fuzz/artifacts/`; both stay out of the repository. To see a finding again: `--replay FILE`.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None:
    with atheris.instrument_imports(include=["bytewright"], enable_loader_override=False):
        import model_targets
        import targets
else:
    import model_targets
    import targets

NAMES = targets.NAMES + model_targets.NAMES
MEMORY_MB = 4096  # PyTorch alone takes some hundreds
SLOWEST_INPUT_SECONDS = 10


def main() -> None:
    """Read the command line; each target runs in a process of its own, in a folder that is removed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=NAMES, help="the target; all in turn if left out")
    parser.add_argument("--seconds", type=int, default=30, help="how long to run each target")
    parser.add_argument("--replay", type=Path, help="run one input and nothing else")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # set: this is the process of its own
    options = parser.parse_args()
    if options.folder is not None:
        module = targets if options.name in targets.NAMES else model_targets
        run(options.name, module.make_targets(options.folder)[options.name], options)
        return
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # thousands of small files a second
    for name in [options.name] if options.name else NAMES:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="bytewright-fuzz-", dir=in_memory) as folder:
            command = [sys.executable, __file__, name, "--folder", folder, "--seconds", str(options.seconds)]
            command += ["--replay", str(options.replay)] if options.replay else []
            if subprocess.run(command, check=False).returncode:
                sys.exit(1)


def run(name: str, target: targets.Target, options: argparse.Namespace) -> None:
    """Run one target in the way that was asked for and is possible."""
    if options.replay is not None:
        target(options.replay.read_bytes())
    elif atheris is not None:
        run_guided(name, target, options.seconds)
    else:
        run_blind(name, target, options.seconds)


def run_guided(name: str, target: targets.Target, seconds: int) -> None:
    """Let libFuzzer look for inputs that reach new code; it ends the process."""
    corpus, artifacts = folders_of(name)
    arguments = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-timeout={SLOWEST_INPUT_SECONDS}",
    ]
    arguments += [f"-artifact_prefix={artifacts}/", "-max_len=8192", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], target)
    atheris.Fuzz()


def run_blind(name: str, target: targets.Target, seconds: int) -> None:
    """Mutate inputs at random, with a new seed each time, which is printed."""
    corpus, artifacts = folders_of(name)
    inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        data = bytearray(chance.choice(inputs) + chance.randbytes(chance.randrange(40)))
        for _ in range(chance.randrange(8)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            target(bytes(data))
        except BaseException:
            (artifacts / f"blind-{seed}-{runs}").write_bytes(data)
            raise
        runs += 1
    print(f"{runs} inputs, seed {seed}, nothing found")


def folders_of(name: str) -> tuple[Path, Path]:
    """Make the folders of a target, and put the seeds into its corpus."""
    corpus, artifacts = (HERE.parent / kind / f"reader-{name}" for kind in ("corpus", "artifacts"))
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.seeds()):
        (corpus / f"seed-{number:02}").write_bytes(seed)
    return corpus, artifacts


if __name__ == "__main__":
    main()
