//! Characters and their classes for the patterns: letter, number, space, other.
//!
//! Invalid UTF-8 is allowed. A byte outside a valid sequence is one character of class `Other`, as in the reference
//! implementation. Text must be split at `floor_char_boundary` or at a boundary of the pattern: the halves of a split
//! character would be invalid bytes.

use crate::unicode_tables::{BLOCK_OF, BLOCKS};

/// The class of a character, as `\p{L}`, `\p{N}`, `\s` and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Neither letter, number nor space; also every byte of invalid UTF-8.
    Other = 0,
    /// `\p{L}`
    Letter = 1,
    /// `\p{N}`
    Number = 2,
    /// `\s`
    Space = 3,
}

impl Class {
    #[inline]
    fn from_bits(bits: u8) -> Class {
        match bits & 3 {
            1 => Class::Letter,
            2 => Class::Number,
            3 => Class::Space,
            _ => Class::Other,
        }
    }

    /// The class of a code point.
    #[inline]
    pub fn of(code: u32) -> Class {
        let Some(&block) = BLOCK_OF.get((code >> 8) as usize) else {
            return Class::Other;
        };
        let byte = BLOCKS[block as usize * 64 + ((code & 0xff) >> 2) as usize];
        Class::from_bits(byte >> ((code & 3) * 2))
    }
}

/// A character in bytes: its class and its length (1 for an invalid byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Char {
    /// The code point, or `None` for a byte of invalid UTF-8.
    pub code: Option<u32>,
    /// Its class.
    pub class: Class,
    /// Its length in bytes, 1 to 4.
    pub len: usize,
}

/// Read the character that begins at `position`, or `None` at the end of the text.
#[inline]
pub fn char_at(text: &[u8], position: usize) -> Option<Char> {
    let first = *text.get(position)?;
    if first < 0x80 {
        let code = u32::from(first);
        return Some(Char { code: Some(code), class: Class::of(code), len: 1 });
    }
    Some(decode_multibyte(text, position).map_or(
        Char { code: None, class: Class::Other, len: 1 },
        |(code, len)| Char { code: Some(code), class: Class::of(code), len },
    ))
}

/// Decode the multi-byte character at `position`; reject overlong forms, surrogates and codes above U+10FFFF.
#[inline]
fn decode_multibyte(text: &[u8], position: usize) -> Option<(u32, usize)> {
    let continuation = |offset: usize| -> Option<u32> {
        let byte = *text.get(position + offset)?;
        (byte & 0xc0 == 0x80).then_some(u32::from(byte & 0x3f))
    };
    let first = *text.get(position)?;
    let lead = u32::from(first);
    match first {
        0xc2..=0xdf => Some(((lead & 0x1f) << 6 | continuation(1)?, 2)),
        0xe0..=0xef => {
            let code = (lead & 0x0f) << 12 | continuation(1)? << 6 | continuation(2)?;
            let valid = code >= 0x800 && !(0xd800..=0xdfff).contains(&code);
            valid.then_some((code, 3))
        }
        0xf0..=0xf4 => {
            let code =
                (lead & 0x07) << 18 | continuation(1)? << 12 | continuation(2)? << 6 | continuation(3)?;
            (0x10000..=0x10ffff).contains(&code).then_some((code, 4))
        }
        _ => None,
    }
}

/// Read the character that ends just before `position`, or `None` at the beginning of the text.
#[inline]
pub fn char_before(text: &[u8], position: usize) -> Option<Char> {
    let last = position.checked_sub(1)?;
    if text.get(last)?.is_ascii() { char_at(text, last) } else { Some(multibyte_before(text, position)) }
}

/// Read the character, of several bytes or an invalid one, that ends just before `position`.
fn multibyte_before(text: &[u8], position: usize) -> Char {
    let tail = &text[position.saturating_sub(4)..position];
    let lead = tail.iter().rposition(|&byte| !is_continuation(byte));
    let found = lead.and_then(|lead| char_at(tail, lead).filter(|found| lead + found.len == tail.len()));
    found.unwrap_or(Char { code: None, class: Class::Other, len: 1 })
}

/// The last position up to `position` that is not inside a character, or the end of a shorter text.
#[inline]
pub(crate) fn floor_char_boundary(text: &[u8], position: usize) -> usize {
    if position >= text.len() {
        return text.len();
    }
    // A character that extends over `position` begins at most three bytes before it, with a lead byte. Before that
    // there may be a complete character, followed by continuation bytes that belong to no character.
    let lead =
        (1..4).filter_map(|back| position.checked_sub(back)).find(|&lead| !is_continuation(text[lead]));
    let across = |&lead: &usize| char_at(text, lead).is_some_and(|found| lead + found.len > position);
    lead.filter(across).unwrap_or(position)
}

/// Whether `byte` is a continuation byte.
#[inline]
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_point_decodes_to_itself_forwards_and_backwards() {
        for code in (0..=0x10ffffu32).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let text = code.encode_utf8(&mut buffer).as_bytes();
            let expected = Char { code: Some(code as u32), class: Class::of(code as u32), len: text.len() };
            assert_eq!(char_at(text, 0), Some(expected));
            assert_eq!(char_before(text, text.len()), Some(expected));
            let twice = [text, text].concat();
            assert_eq!(char_before(&twice, twice.len()), Some(expected));
        }
    }

    #[test]
    fn invalid_bytes_are_single_characters_of_class_other() {
        let mut samples: Vec<Vec<u8>> =
            vec![vec![0xed, 0xa0, 0x80], vec![0xc0, 0x80], vec![0xf4, 0x90, 0x80, 0x80]];
        for a in 0x80..=0xffu8 {
            for b in [0x00, 0x7f, 0x80, 0x9f, 0xa0, 0xbf, 0xc2, 0xff] {
                samples.push(vec![a, b]);
                samples.push(vec![a, b, 0x80]);
                samples.push(vec![a, b, 0x80, 0xbf]);
                samples.push(vec![0xc3, a, b, 0x80, 0xbf, 0xbf]);
            }
        }
        for sample in samples {
            let mut position = 0;
            let mut lengths = Vec::new();
            while let Some(found) = char_at(&sample, position) {
                lengths.push(found.len);
                position += found.len;
            }
            let mut expected = Vec::new();
            for chunk in sample.utf8_chunks() {
                expected.extend(chunk.valid().chars().map(char::len_utf8));
                expected.extend(chunk.invalid().iter().map(|_| 1));
            }
            assert_eq!(lengths, expected, "{sample:02x?}");

            let mut position = sample.len();
            let mut backwards = Vec::new();
            while let Some(found) = char_before(&sample, position) {
                backwards.push(found.len);
                position -= found.len;
            }
            backwards.reverse();
            assert_eq!(backwards, expected, "{sample:02x?}");

            let mut starts = vec![0];
            starts.extend(expected.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            }));
            for position in 0..=sample.len() {
                let last = starts.iter().copied().rfind(|&start| start <= position);
                assert_eq!(Some(floor_char_boundary(&sample, position)), last, "{sample:02x?} at {position}");
            }
        }
    }
}
