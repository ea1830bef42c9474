//! Any regular expression of the user's own: the slow, general path.
//!
//! The engine reads `str`, so each byte of invalid UTF-8 is shown to it as a character that is none, and positions
//! are translated back. What the expression leaves unmatched becomes a pre-token of its own, so that no byte is ever
//! lost; empty matches are dropped.

use fancy_regex::Regex;

use crate::error::{Error, Result};

/// What stands for a byte of invalid UTF-8: a code point of plane 13, where nothing is assigned. So no expression takes
/// it for a letter, a number, a space or, as it would U+FFFD, for a symbol; nor, in `(.)\1`, for another such byte.
fn stand_in(byte: u8) -> char {
    char::from_u32(0xd0000 + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Compile a user's expression.
pub(crate) fn compile(expression: &str) -> Result<Regex> {
    Regex::new(expression).map_err(|error| Error::Pattern(error.to_string()))
}

/// Call `end_at` with the end of every pre-token of `text`, in order.
pub(crate) fn scan(regex: &Regex, text: &[u8], mut end_at: impl FnMut(usize)) -> Result<()> {
    match std::str::from_utf8(text) {
        Ok(text) => scan_str(regex, text, end_at),
        Err(_) => {
            let (shown, origin) = replace_invalid(text);
            scan_str(regex, &shown, |end| end_at(origin[end]))
        }
    }
}

fn scan_str(regex: &Regex, text: &str, mut end_at: impl FnMut(usize)) -> Result<()> {
    let mut done = 0;
    for found in regex.find_iter(text) {
        let found = found.map_err(|error| Error::Match { position: done, reason: error.to_string() })?;
        if found.start() == found.end() {
            continue;
        }
        if found.start() > done {
            end_at(found.start());
        }
        end_at(found.end());
        done = found.end();
    }
    if done < text.len() {
        end_at(text.len());
    }
    Ok(())
}

/// Replace each invalid byte by its `stand_in`; `origin[i]` is the place in `text` of byte `i` of the result.
fn replace_invalid(text: &[u8]) -> (String, Vec<usize>) {
    let mut shown = String::with_capacity(text.len());
    let mut origin = Vec::with_capacity(text.len() + 1);
    let mut position = 0;
    for chunk in text.utf8_chunks() {
        shown.push_str(chunk.valid());
        origin.extend(position..position + chunk.valid().len());
        position += chunk.valid().len();
        for &byte in chunk.invalid() {
            let character = stand_in(byte);
            shown.push(character);
            origin.extend(std::iter::repeat_n(position, character.len_utf8()));
            position += 1;
        }
    }
    origin.push(position);
    (shown, origin)
}
