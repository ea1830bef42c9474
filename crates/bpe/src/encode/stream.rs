//! Encoding a text that is given in pieces, without threads and with little memory.

use super::{Encoder, Id};
use crate::cut::last_cut;
use crate::error::Result;
use crate::lowlevel::extend;
use crate::pattern::Pattern;

/// The length of the longest character in bytes; the character before a cut must be complete.
const LONGEST_CHAR: usize = 4;

/// The part of a text that was given but cannot be encoded yet.
///
/// Text is encoded up to the last safe cut, so about a word is kept. Text without a safe cut is kept completely: with a
/// user-defined pattern, this is the text up to the next special token.
#[derive(Debug, Default)]
pub struct Stream {
    kept: Vec<u8>,
    /// The number of bytes that were encoded; `kept` begins there.
    num_encoded: usize,
    /// The length of the beginning of `kept` that contains no safe cut.
    searched: usize,
    /// For a user-defined pattern: search again when this much is kept, so that the total search time is linear.
    search_at: usize,
}

impl Stream {
    /// An empty stream.
    pub fn new() -> Stream {
        Stream::default()
    }

    /// Add text; append the ids that are certain now to `out`.
    pub fn feed<I: Id>(&mut self, encoder: &Encoder, text: &[u8], out: &mut Vec<I>) -> Result<()> {
        extend(&mut self.kept, text)?;
        // A special token across a cut must be complete, and so must the character after the cut.
        let limit = self.kept.len().saturating_sub(encoder.specials.longest().max(LONGEST_CHAR));
        if let Some(cut) = self.find_cut(encoder, limit) {
            self.encode(encoder, cut, out)?;
            self.kept.drain(..cut);
            self.num_encoded += cut;
            self.searched = limit - cut;
            self.search_at = 2 * self.kept.len();
        }
        Ok(())
    }

    /// End the text; append the remaining ids to `out`.
    pub fn finish<I: Id>(&mut self, encoder: &Encoder, out: &mut Vec<I>) -> Result<()> {
        self.encode(encoder, self.kept.len(), out)?;
        *self = Stream::default();
        Ok(())
    }

    /// Append the ids of the first `num_bytes` of `kept` to `out`.
    fn encode<I: Id>(&self, encoder: &Encoder, num_bytes: usize, out: &mut Vec<I>) -> Result<()> {
        let text = &self.kept[..num_bytes];
        encoder
            .encode_with(text, &encoder.specials, &encoder.special_ids, false, out)
            .map_err(|error| error.after(self.num_encoded))
    }

    fn find_cut(&mut self, encoder: &Encoder, limit: usize) -> Option<usize> {
        if let Pattern::User(_) = encoder.pattern {
            if self.kept.len() < self.search_at {
                return None;
            }
            self.search_at = 2 * self.kept.len();
            return encoder.specials.last_end(&self.kept, limit);
        }
        let from = std::mem::replace(&mut self.searched, limit);
        last_cut(&encoder.pattern, &encoder.specials, &self.kept, from + 1, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An encoder without merges: the id of a byte is the byte, special tokens follow.
    fn encoder(pattern: &str, specials: &[&str]) -> Result<Encoder> {
        let mut tokens: Vec<(u32, Vec<u8>)> = (0..=255u8).map(|byte| (byte.into(), vec![byte])).collect();
        let specials: Vec<(String, u32)> =
            specials.iter().map(|&token| token.to_owned()).zip(256..).collect();
        tokens.extend(specials.iter().map(|(token, id)| (*id, token.clone().into_bytes())));
        Encoder::new(&tokens, &[], specials, Pattern::parse(pattern)?)
    }

    #[test]
    fn about_a_word_is_kept() -> Result<()> {
        let encoder = encoder("gpt2", &["<| the end |>"])?;
        let text = "once upon a time <| the end |>".repeat(1000);
        let mut stream = Stream::new();
        let mut ids: Vec<u32> = Vec::new();
        for piece in text.as_bytes().chunks(7) {
            stream.feed(&encoder, piece, &mut ids)?;
            assert!(stream.kept.len() < 60, "{:?}", String::from_utf8_lossy(&stream.kept));
        }
        stream.finish(&encoder, &mut ids)?;
        let mut expected: Vec<u32> = Vec::new();
        encoder.encode(text.as_bytes(), &mut expected)?;
        assert_eq!(ids, expected);
        assert_eq!(ids.iter().filter(|&&id| id == 256).count(), 1000);
        Ok(())
    }

    #[test]
    fn a_special_token_is_recognised_in_any_pieces() -> Result<()> {
        for pattern in ["gpt2", "gpt4", r"\w+"] {
            let encoder = encoder(pattern, &["<e>", "<e><e>", " x <e>"])?;
            for text in ["<e>", "<e><e><e>", "a <e> b", "a x <e>", " x  x <e", "", " "] {
                let mut expected: Vec<u32> = Vec::new();
                encoder.encode(text.as_bytes(), &mut expected)?;
                for size in 1..=text.len().max(1) {
                    let mut stream = Stream::new();
                    let mut ids: Vec<u32> = Vec::new();
                    for piece in text.as_bytes().chunks(size) {
                        stream.feed(&encoder, piece, &mut ids)?;
                        stream.feed(&encoder, b"", &mut ids)?;
                    }
                    stream.finish(&encoder, &mut ids)?;
                    assert_eq!(ids, expected, "{text:?} by {size} with {pattern}");
                    stream.finish(&encoder, &mut ids)?;
                    assert_eq!(ids, expected, "a finished stream is empty");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn with_a_user_defined_pattern_special_tokens_release_the_text() -> Result<()> {
        let encoder = encoder(".+", &["<e>"])?;
        let mut stream = Stream::new();
        let mut ids: Vec<u32> = Vec::new();
        for _ in 0..1000 {
            stream.feed(&encoder, b"no cut is known to be safe in here<e>", &mut ids)?;
            assert!(stream.kept.len() < 200);
        }
        assert!(ids.len() > 30_000);
        Ok(())
    }
}
