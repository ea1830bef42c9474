//! The GPT-2 pattern, scanned 64 bytes at a time.
//!
//! `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
//!
//! Each byte has the class of its character (letter, number, white, other), as one bit in a word per class. In these
//! bits, a pre-token begins
//!
//! - where a run of one class begins, unless a U+0020 precedes it, which then begins the pre-token;
//! - at the first character of a run of white space;
//! - at the last character of that run if another class follows (`\s+(?!\S)` excludes it; a U+0020 joins the next run);
//! - after a contraction: an apostrophe that begins a pre-token, followed by s, d, m, t, ll, ve or re.
//!
//! Non-ASCII characters are rare in most texts; their bits are set one by one after the vector pass.

use crate::error::Result;
use crate::lowlevel::{self, BLOCK, Keys, Masks, Task};
use crate::unicode::{self, Class};

/// The number of blocks in a window. Initialising a larger window takes longer than scanning a short text.
const BLOCKS: usize = 64;
const FEW_BLOCKS: usize = 4;

/// The state between blocks: the class of the previous byte.
#[derive(Clone, Copy, Default)]
struct Before {
    letter: u64,
    number: u64,
    other: u64,
    white: u64,
    blank: u64,
}

/// Finds the ends of pre-tokens window by window.
struct Scanner<const BLOCKS: usize, const ENDS: usize> {
    masks: [Masks; BLOCKS],
    /// First bytes of non-ASCII white space that no white space follows.
    wide_ends: [u64; BLOCKS],
    before: Before,
    /// The end of a contraction that extends into the next block.
    resume_at: Option<usize>,
    /// The ends in a window, relative to its start; written in groups of eight, which needs spare room.
    ends: [u32; ENDS],
}

/// Call `emit(base, ends)` for every window of text: the next pre-tokens end at `base + end`.
#[inline(always)]
pub(crate) fn scan(text: &[u8], emit: impl FnMut(usize, &[u32]) -> Result<()>) -> Result<()> {
    if text.len() <= BLOCK * FEW_BLOCKS {
        scan_windows::<FEW_BLOCKS, { BLOCK * FEW_BLOCKS + 8 }>(text, emit)
    } else {
        scan_windows::<BLOCKS, { BLOCK * BLOCKS + 8 }>(text, emit)
    }
}

#[inline(always)]
fn scan_windows<const BLOCKS: usize, const ENDS: usize>(
    text: &[u8],
    mut emit: impl FnMut(usize, &[u32]) -> Result<()>,
) -> Result<()> {
    let mut scanner: Scanner<BLOCKS, ENDS> = Scanner {
        masks: [Masks::default(); BLOCKS],
        wide_ends: [0; BLOCKS],
        before: Before::default(),
        resume_at: None,
        ends: [0; ENDS],
    };
    let mut start = 0;
    while start < text.len() {
        let end = unicode::floor_char_boundary(text, start + BLOCK * BLOCKS);
        let num_ends = lowlevel::dispatch(ScanWindow { scanner: &mut scanner, text, start, end });
        emit(start, &scanner.ends[..num_ends])?;
        start = end;
    }
    if text.is_empty() { Ok(()) } else { emit(text.len(), &[0]) }
}

/// Find the pre-tokens that end inside one window, and return their number.
struct ScanWindow<'s, 't, const BLOCKS: usize, const ENDS: usize> {
    scanner: &'s mut Scanner<BLOCKS, ENDS>,
    text: &'t [u8],
    start: usize,
    end: usize,
}

impl<const BLOCKS: usize, const ENDS: usize> Task for ScanWindow<'_, '_, BLOCKS, ENDS> {
    type Output = usize;

    #[inline(always)]
    fn run<K: Keys>(self) -> usize {
        let ScanWindow { scanner, text, start: window_start, end: window_end } = self;
        let Scanner { masks, wide_ends, before, resume_at, ends } = scanner;
        let window = &text[window_start..window_end];
        let num_blocks = window.len().div_ceil(BLOCK);
        lowlevel::classify(window, masks);
        classify_wide(text, window_start, &mut masks[..num_blocks], wide_ends);
        // At the end of the text, a run of white space is one pre-token.
        let white_follows = unicode::char_at(text, window_end).is_none_or(|next| next.class == Class::Space);
        let mut num_ends = 0;
        for index in 0..num_blocks {
            let mask = masks[index];
            let len = (window.len() - index * BLOCK).min(BLOCK);
            let valid = !0 >> (BLOCK - len);
            let other = !(mask.letter | mask.number | mask.white) & valid;
            let white_next =
                if index + 1 < num_blocks { masks[index + 1].white & 1 } else { white_follows.into() };
            let before_white = mask.white >> 1 | white_next << (len - 1);
            let after_blank = mask.blank << 1 | before.blank;

            let mut starts = (mask.letter & !(mask.letter << 1 | before.letter)
                | mask.number & !(mask.number << 1 | before.number)
                | other & !(other << 1 | before.other))
                & !after_blank;
            starts |= mask.white & !(mask.white << 1 | before.white);
            starts |= mask.white & !mask.high & !before_white | wide_ends[index];

            let block_start = window_start + index * BLOCK;
            if let Some(position) = resume_at.take() {
                let offset = position - block_start;
                starts = (starts & (!0 << offset) | 1 << offset) & valid;
            }
            let mut apostrophes = starts & mask.apostrophe;
            while apostrophes != 0 {
                let offset = apostrophes.trailing_zeros() as usize;
                apostrophes &= apostrophes - 1;
                if let Some(length) = contraction_at(text, block_start + offset) {
                    let end = offset + length;
                    starts &= !(((1 << length) - 2) << offset);
                    if end < len {
                        starts |= 1 << end;
                    } else {
                        *resume_at = Some(block_start + end);
                    }
                }
            }
            if block_start == 0 {
                starts &= !1; // the first pre-token begins here; none ends here
            }
            let next_num_ends = num_ends + starts.count_ones() as usize;
            while starts != 0 {
                // Write eight at a time without checking their number; excess values are overwritten by the next group.
                let Some(eight) = ends[num_ends..].first_chunk_mut::<8>() else { break };
                for end in eight {
                    *end = (index * BLOCK) as u32 + starts.trailing_zeros();
                    starts &= starts.wrapping_sub(1);
                }
                num_ends += 8;
            }
            num_ends = next_num_ends;
            let last = len - 1;
            *before = Before {
                letter: mask.letter >> last & 1,
                number: mask.number >> last & 1,
                other: other >> last & 1,
                white: mask.white >> last & 1,
                blank: mask.blank >> last & 1,
            };
        }
        num_ends
    }
}

/// Set the bits of all non-ASCII characters, and in `wide_ends` those of white space that no white space follows.
#[inline]
fn classify_wide(text: &[u8], window_start: usize, masks: &mut [Masks], wide_ends: &mut [u64]) {
    wide_ends.fill(0);
    let mut position = window_start;
    for index in 0..masks.len() {
        let block_start = window_start + index * BLOCK;
        let mut remaining = masks[index].high;
        while remaining != 0 {
            let offset = remaining.trailing_zeros() as usize;
            remaining &= remaining - 1;
            if block_start + offset < position {
                continue; // inside a character that was processed
            }
            let start = block_start + offset;
            let Some(found) = unicode::char_at(text, start) else { continue };
            position = start + found.len;
            if found.class == Class::Other {
                continue;
            }
            for byte in start..position {
                let bit = 1 << ((byte - window_start) % BLOCK);
                let Some(mask) = masks.get_mut((byte - window_start) / BLOCK) else { break };
                match found.class {
                    Class::Letter => mask.letter |= bit,
                    Class::Number => mask.number |= bit,
                    Class::Space => mask.white |= bit,
                    Class::Other => {}
                }
            }
            if found.class == Class::Space
                && unicode::char_at(text, position).is_some_and(|next| next.class != Class::Space)
            {
                wide_ends[index] |= 1 << offset;
            }
        }
    }
}

/// The length of the contraction whose apostrophe is at `position`, if there is one.
#[inline]
fn contraction_at(text: &[u8], position: usize) -> Option<usize> {
    match text.get(position + 1..)? {
        [b's' | b'd' | b'm' | b't', ..] => Some(2),
        [b'l', b'l', ..] | [b'v' | b'r', b'e', ..] => Some(3),
        _ => None,
    }
}

/// Whether every text with the same characters around `position` has a pre-token boundary there.
///
/// Inside a pre-token, a character of class letter, number or other is never followed by another class, except in a
/// contraction, which joins an apostrophe and letters.
#[inline]
pub(crate) fn is_boundary(text: &[u8], position: usize) -> bool {
    let (Some(before), Some(after)) =
        (unicode::char_before(text, position), unicode::char_at(text, position))
    else {
        return false;
    };
    match before.class {
        Class::Space => false,
        Class::Letter | Class::Number => after.class != before.class,
        Class::Other => {
            after.class != Class::Other
                && !(after.class == Class::Letter && before.code == Some(u32::from(b'\'')))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends<const BLOCKS: usize, const ENDS: usize>(text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        let outcome = scan_windows::<BLOCKS, ENDS>(text, |base, ends| {
            found.extend(ends.iter().map(|&end| base + end as usize));
            Ok(())
        });
        assert!(outcome.is_ok());
        found
    }

    /// Lead bytes, continuation bytes and ASCII in any order, in windows of one block and in one window.
    #[test]
    fn pretokens_do_not_depend_on_where_a_window_ends() {
        const BYTES: &[u8] = b"\xc2\xc3\xe3\xe6\xf0\xff\x80\x85\x97\x9f\xa5\xa9\xbf a1'\n!";
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..2_000 {
            let text: Vec<u8> = (0..BLOCK * 3).map(|_| BYTES[draw(BYTES.len())]).collect();
            assert_eq!(ends::<1, { BLOCK + 8 }>(&text), ends::<3, { BLOCK * 3 + 8 }>(&text), "{text:02x?}");
        }
    }
}
