"""Run one fuzz target, or all of them: `python fuzz/readers/run.py [NAME] [--seconds N]`.

With atheris, libFuzzer searches for inputs that reach new code. Without it, the script mutates the seeds at
random, which finds less. The corpus is in `fuzz/corpus/` and findings are in `fuzz/artifacts/`; git ignores
both. `--replay FILE` reproduces a finding.
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
MEMORY_MB = 4096  # PyTorch alone uses several hundred
SLOWEST_INPUT_SECONDS = 10


def main() -> None:
    """Run each selected target in its own process and temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=NAMES, help="the target; default: all of them")
    parser.add_argument("--seconds", type=int, default=30, help="time for each target")
    parser.add_argument("--replay", type=Path, help="run only this input")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # set in the process of a target
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
    """Replay one input, or fuzz one target with or without atheris."""
    if options.replay is not None:
        target(options.replay.read_bytes())
    elif atheris is not None:
        run_guided(name, target, options.seconds)
    else:
        run_blind(name, target, options.seconds)


def run_guided(name: str, target: targets.Target, seconds: int) -> None:
    """Fuzz with libFuzzer, which ends the process."""
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
    """Mutate inputs at random with a new seed, which is printed."""
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
    """Create the folders of a target and write the seeds into its corpus."""
    corpus, artifacts = (HERE.parent / kind / f"reader-{name}" for kind in ("corpus", "artifacts"))
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.seeds()):
        (corpus / f"seed-{number:02}").write_bytes(seed)
    return corpus, artifacts


if __name__ == "__main__":
    main()
