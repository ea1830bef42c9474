//! User-defined regular expressions: the slow, general case.
//!
//! The engine needs `str`, so each byte of invalid UTF-8 is replaced by an unassigned character, and positions are
//! translated back. Unmatched text becomes a separate pre-token, so no byte is lost. Empty matches are ignored.

use fancy_regex::Regex;

use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::with_capacity;

/// The length in bytes of a replacement character.
const STAND_IN_LEN: usize = 4;

/// The replacement of an invalid byte: a code point of plane 13, which has no assigned characters. So no expression
/// matches it as a letter, number, space or (like U+FFFD) symbol. Different bytes have different replacements, which
/// matters for `(.)\1`.
fn stand_in(byte: u8) -> char {
    char::from_u32(0xd0000 + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Compile a user-defined expression.
pub(crate) fn compile(expression: &str) -> Result<Regex> {
    Regex::new(expression).map_err(|error| Error::Pattern(error.to_string()))
}

/// Call `end_at` with the end of every pre-token of `text`, in order.
pub(crate) fn scan(regex: &Regex, text: &[u8], mut end_at: impl FnMut(usize)) -> Result<()> {
    match std::str::from_utf8(text) {
        Ok(text) => scan_str(regex, text, end_at),
        Err(_) => {
            let (shown, replaced) = replace_invalid(text)?;
            let mut num_passed = 0; // replacements before the current position; positions only increase
            let mut origin = |place: usize| {
                num_passed += replaced[num_passed..].iter().take_while(|&&start| start < place).count();
                place - num_passed * (STAND_IN_LEN - 1)
            };
            scan_str(regex, &shown, |end| end_at(origin(end))).map_err(|error| match error {
                Error::Match { position, reason } => Error::Match { position: origin(position), reason },
                other => other,
            })
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

/// Replace each invalid byte by its `stand_in`; also return the positions of the replacements in the result.
fn replace_invalid(text: &[u8]) -> Result<(String, Vec<usize>), OutOfMemory> {
    let num_invalid: usize = text.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    let mut shown = String::new();
    shown.try_reserve_exact(text.len() + num_invalid * (STAND_IN_LEN - 1))?;
    let mut replaced = with_capacity(num_invalid)?;
    for chunk in text.utf8_chunks() {
        shown.push_str(chunk.valid());
        for &byte in chunk.invalid() {
            replaced.push(shown.len());
            shown.push(stand_in(byte));
        }
    }
    Ok((shown, replaced))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(expression: &str, text: &'t [u8]) -> Result<Vec<&'t [u8]>> {
        let mut found = Vec::new();
        let mut start = 0;
        scan(&compile(expression)?, text, |end| {
            found.push(&text[start..end]);
            start = end;
        })?;
        Ok(found)
    }

    #[test]
    fn unmatched_text_is_a_word_and_empty_matches_are_ignored() -> Result<()> {
        assert_eq!(words("[a-z]+", b"one-two!")?, [&b"one"[..], b"-", b"two", b"!"]);
        assert_eq!(words("b*", b"abba")?, [&b"a"[..], b"bb", b"a"]);
        assert_eq!(words("", b"ab")?, [b"ab"]);
        assert!(words("a", b"")?.is_empty());
        Ok(())
    }

    #[test]
    fn every_invalid_byte_is_a_character_of_no_class() -> Result<()> {
        for byte in 0x80..=0xff {
            assert_eq!(stand_in(byte).len_utf8(), STAND_IN_LEN);
            let text = [b'a', byte, byte, b'b'];
            assert_eq!(words(r"[\p{L}\p{N}\p{S}\p{P}\s]", &text)?, [&b"a"[..], &[byte, byte], b"b"]);
            assert_eq!(words("(?s).", &text)?, [&b"a"[..], &[byte], &[byte], b"b"]);
        }
        assert_eq!(words(r"\S+", b"\xff\xfea \xe2\x82b")?, [&b"\xff\xfea"[..], b" ", b"\xe2\x82b"]);
        Ok(())
    }

    #[test]
    fn a_failing_expression_reports_the_position() {
        let text = [b"x\xffx\xffx".as_slice(), &b"a".repeat(60)].concat();
        let outcome = words(r"x|(a|aa)+\1$(?<=b)", &text);
        assert!(matches!(outcome, Err(Error::Match { position: 5, .. })), "{outcome:?}");
        assert!(matches!(words("(", b"a"), Err(Error::Pattern(_))));
    }
}
