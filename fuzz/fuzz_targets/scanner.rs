//! Pre-tokens: the scanners and the regular expressions agree, also for invalid UTF-8; and the parts of a text split at
//! a safe cut have the pre-tokens of the whole text.
#![no_main]

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use bpe::cut::{last_cut, next_cut};
use bpe::pattern::Pattern;
use bpe::special::Specials;
use bpe_fuzz::draw::{Draw, GPT2, GPT4, WINDOW, filler};
use bpe_fuzz::naive::{self, Part};
use libfuzzer_sys::fuzz_target;

/// Each scanner with its definition.
static PATTERNS: LazyLock<[(Pattern, Pattern); 2]> = LazyLock::new(|| {
    let parse = |name| Pattern::parse(name).expect("the expressions are valid");
    [(parse("gpt2"), parse(GPT2)), (parse("gpt4"), parse(GPT4))]
});

/// How many cuts of one text are tried, as the scanners are cut in many places and the expressions in few.
const CUTS_OF_OURS: usize = 8;
const CUTS_OF_THEIRS: usize = 1;
/// How much of a text is moved across the edge of a window.
const LONGEST_AT_EDGE: usize = 24;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let specials = draw.specials(3);
    let (from, to) = (draw.below(1 << 16), draw.below(1 << 16));
    let text = draw.rest(&specials);
    let (from, to) = (from % (text.len() + 1), to % (text.len() + 1));
    for (ours, spelled_out) in PATTERNS.iter() {
        let ends = naive::ends(ours, &text).expect("our scanners cannot fail");
        if naive::agreed(&text) {
            assert_eq!(ends, naive::ends(spelled_out, &text).expect("these expressions do not give up"));
        }
        for position in (0..=text.len()).filter(|&position| ours.is_boundary(&text, position)) {
            assert!(ends.binary_search(&position).is_ok(), "called a boundary, but is none: {position}");
        }
        if matches!(ours, Pattern::Gpt2) || draw.rarely(16) {
            check_edges(ours, &text[..text.len().min(LONGEST_AT_EDGE)]); // the other scanner has no windows, and is slow
        }
        check_cuts(ours, &specials, &text, from..=to, CUTS_OF_OURS);
        check_cuts(spelled_out, &specials, &text, from..=to, CUTS_OF_THEIRS);
    }
});

/// Move a text across the edge of a window, byte by byte: its pre-tokens stay the same.
fn check_edges(pattern: &Pattern, text: &[u8]) {
    let ends_after = |len: usize| -> Vec<usize> {
        let ends = naive::ends(pattern, &[&filler(len), text].concat()).expect("our scanners cannot fail");
        ends.into_iter().filter_map(|end| end.checked_sub(len)).collect()
    };
    let expected = ends_after(2);
    for shift in 0..=text.len() {
        assert_eq!(ends_after(WINDOW - shift), expected, "with an edge at byte {shift}");
    }
}

fn check_cuts(
    pattern: &Pattern,
    tokens: &[String],
    text: &[u8],
    range: RangeInclusive<usize>,
    num_cuts: usize,
) {
    let specials = Specials::new(tokens.to_vec()).expect("no special token is empty");
    let pre_tokens =
        |text: &[u8]| naive::pre_tokens(pattern, tokens, text).expect("these expressions do not give up");
    let whole = pre_tokens(text);
    let check = |cut: usize| {
        let mut halves = pre_tokens(&text[..cut]);
        halves.extend(pre_tokens(&text[cut..]).into_iter().map(|part| match part {
            Part::Special(index, position) => Part::Special(index, cut + position),
            text => text,
        }));
        assert_eq!(halves, whole, "cut at {cut}");
    };
    let mut start = *range.start();
    for _ in 0..num_cuts {
        let cut = next_cut(pattern, &specials, text, start);
        assert!((start..=text.len()).contains(&cut));
        check(cut);
        start = cut + 1;
        if start > text.len() {
            break;
        }
    }
    if let Some(cut) = last_cut(pattern, &specials, text, *range.start(), *range.end()) {
        assert!(range.contains(&cut));
        check(cut);
        let next = next_cut(pattern, &specials, text, cut);
        assert_eq!(next, cut, "the last cut is not the next one from there");
    }
}
