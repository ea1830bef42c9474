"""`bytewright corpus check`: whether texts are stories of the storybook, and if not, where they go wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import inputs, options

if TYPE_CHECKING:
    from bytewright.corpus.storybook import CheckReport, StoryCheck

STORIES_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class CheckStories:
    """Parse stories back: how many are well-formed, how many tell one consistent plot, how many are copies.

    The stories may come from the storybook or from a model that was trained on it; each ends with
    <|endoftext|>. A story in the language has an exact probability; of any other it is said where it leaves
    the language, and which facts contradict each other.

    For example:
      bytewright corpus check samples.txt
      bytewright corpus check samples.txt --train stories.txt --json
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="The stories to check.")]

    train: options.OutputFile = None
    """The text that a model was trained on; stories that stand in it word for word are copies."""

    json: bool = False
    """Print everything as JSON, story by story."""

    num_workers: options.NumWorkers = None

    def run(self) -> None:
        """Check the stories and print what was found."""
        inputs.require_file(self.source)
        if self.train is not None:
            inputs.require_file(self.train)
        inputs.require_at_least(1, self.num_workers, "--num-workers")

        from bytewright.cli import console
        from bytewright.corpus.storybook import check_file

        with console.progress() as report:
            checked = check_file(
                self.source,
                training_path=self.train,
                num_workers=self.num_workers or os.cpu_count() or 1,
                progress=lambda done, total: report("check", done, total, "bytes"),
            )
        if self.json:
            print(json.dumps(as_json(checked, copies_known=self.train is not None), allow_nan=False))
        else:
            print_report(checked, copies_known=self.train is not None)


def as_json(report: CheckReport, *, copies_known: bool) -> dict[str, object]:
    """Give the shares, and everything about every story; what is infinite or unknown is null."""
    stories = [dataclasses.asdict(story) for story in report.stories]
    for story in stories:
        story["bits"] = story["bits"] if math.isfinite(story["bits"]) else None
    return {
        "num_stories": len(report.stories),
        "num_sentences": report.num_sentences,
        "sound_sentences": report.sound_sentences,
        "well_formed": report.well_formed,
        "consistent": report.consistent,
        "copies": report.copies if copies_known else None,
        "bits_per_story": report.bits_per_story,
        "stories": stories,
    }


def print_report(report: CheckReport, *, copies_known: bool) -> None:
    """Print the shares as a table, then the first stories that are not in the language."""
    from bytewright.cli import console

    out = console.stdout()
    table = console.table("", "")
    table.add_row("stories", f"{len(report.stories):,}")
    table.add_row("sentences that are well-formed", f"{report.sound_sentences:.1%}")
    table.add_row("stories that are well-formed", f"{report.well_formed:.1%}")
    table.add_row("stories that are consistent, too", f"{report.consistent:.1%}")
    if copies_known:
        table.add_row("copies of training stories", f"{report.copies:.1%}")
    if report.bits_per_story is not None:
        table.add_row("bits per consistent story", f"{report.bits_per_story:.1f}")
    out.print(table)
    outside = [(number, story) for number, story in enumerate(report.stories, 1) if not story.is_consistent]
    for number, story in outside[:STORIES_LISTED]:
        out.print(f"story {number:,} {_complaint(story)}", soft_wrap=True)
    if len(outside) > STORIES_LISTED:
        out.print(f"and {len(outside) - STORIES_LISTED:,} more; --json lists them all")


def _complaint(story: StoryCheck) -> str:
    place = f"sentence {story.leaves_at_sentence}, character {story.leaves_at_character}"
    facts = (
        f"; it contradicts itself about: {', '.join(story.contradictions)}" if story.contradictions else ""
    )
    return f"leaves the language at {place}, at {story.found!r}{facts}"
