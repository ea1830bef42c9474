//! The pattern of GPT-4 (cl100k), one character at a time.
//!
//! `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}` and, joined to it,
//! `| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`.

use crate::unicode::{self, Char, Class};

/// Call `end_at` with the end of every pre-token of `text`, in order.
#[inline]
pub(crate) fn scan(text: &[u8], mut end_at: impl FnMut(usize)) {
    let mut start = 0;
    while let Some(first) = unicode::char_at(text, start) {
        start = end_of_token(text, start, first);
        end_at(start);
    }
}

fn end_of_token(text: &[u8], start: usize, first: Char) -> usize {
    let second = start + first.len;
    if is(first, b'\'')
        && let Some(end) = end_of_contraction(text, second)
    {
        return end;
    }
    match first.class {
        Class::Letter => end_of_run(text, second, Class::Letter),
        Class::Number => end_of_number(text, second),
        Class::Space | Class::Other => {
            let next = unicode::char_at(text, second);
            let is_newline = is(first, b'\r') || is(first, b'\n');
            match next {
                Some(next) if next.class == Class::Letter && !is_newline => {
                    end_of_run(text, second + next.len, Class::Letter)
                }
                Some(next) if next.class == Class::Other && is(first, b' ') => {
                    end_of_newlines(text, end_of_run(text, second, Class::Other))
                }
                _ if first.class == Class::Other => {
                    end_of_newlines(text, end_of_run(text, second, Class::Other))
                }
                _ => end_of_white(text, start),
            }
        }
    }
}

#[inline]
fn is(found: Char, byte: u8) -> bool {
    found.code == Some(u32::from(byte))
}

fn end_of_run(text: &[u8], mut position: usize, class: Class) -> usize {
    while let Some(next) = unicode::char_at(text, position).filter(|next| next.class == class) {
        position += next.len;
    }
    position
}

fn end_of_number(text: &[u8], mut position: usize) -> usize {
    for _ in 0..2 {
        match unicode::char_at(text, position) {
            Some(next) if next.class == Class::Number => position += next.len,
            _ => break,
        }
    }
    position
}

fn end_of_newlines(text: &[u8], mut position: usize) -> usize {
    while matches!(text.get(position), Some(b'\r' | b'\n')) {
        position += 1;
    }
    position
}

/// A run of white space ends after its last line end. Without a line end, its last character belongs to the next
/// pre-token, unless the run has one character or ends the text.
fn end_of_white(text: &[u8], start: usize) -> usize {
    let mut position = start;
    let mut last = start;
    let mut after_newline = None;
    while let Some(next) = unicode::char_at(text, position).filter(|next| next.class == Class::Space) {
        last = position;
        position += next.len;
        if is(next, b'\r') || is(next, b'\n') {
            after_newline = Some(position);
        }
    }
    match after_newline {
        Some(end) => end,
        None if position < text.len() && last > start => last,
        None => position,
    }
}

/// The end of the contraction whose first letter is at `position`. Case is ignored, so `s` is also U+017F.
fn end_of_contraction(text: &[u8], position: usize) -> Option<usize> {
    let rest = text.get(position..)?;
    match rest {
        [b's' | b'S' | b'd' | b'D' | b'm' | b'M' | b't' | b'T', ..] => Some(position + 1),
        [0xc5, 0xbf, ..] => Some(position + 2),
        [b'l' | b'L', b'l' | b'L', ..] | [b'v' | b'V' | b'r' | b'R', b'e' | b'E', ..] => Some(position + 2),
        _ => None,
    }
}

/// Whether every text with the same characters around `position` has a pre-token boundary there.
#[inline]
pub(crate) fn is_boundary(text: &[u8], position: usize) -> bool {
    text.get(position) == Some(&b' ')
        && unicode::char_before(text, position).is_some_and(|before| before.class != Class::Space)
}
