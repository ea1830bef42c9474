//! Encoding a text that arrives in pieces, without threads and with little memory.

use super::{Encoder, Id};
use crate::cut::last_cut;
use crate::error::Result;
use crate::pattern::Pattern;

/// The longest character in bytes: what stands before a possible cut must be known to its end.
const LONGEST_CHAR: usize = 4;

/// The part of a text that has arrived but cannot be encoded yet.
///
/// It is encoded up to the last safe cut, so what is kept is about a word. Text without any safe cut is kept whole:
/// with a pattern of the user's, that is up to the next special token.
#[derive(Debug, Default)]
pub struct Stream {
    kept: Vec<u8>,
    /// No safe cut lies in this much of `kept`.
    searched: usize,
    /// For a user's pattern: search again when this much is kept, so that searching stays linear.
    search_at: usize,
}

impl Stream {
    /// Nothing has arrived.
    pub fn new() -> Stream {
        Stream::default()
    }

    /// More text has arrived: append the ids that are certain now to `out`.
    pub fn feed<I: Id>(&mut self, encoder: &Encoder, text: &[u8], out: &mut Vec<I>) -> Result<()> {
        self.kept.extend_from_slice(text);
        // A special token across a cut must be visible to its end, and so must the character behind the cut.
        let limit = self.kept.len().saturating_sub(encoder.specials.longest().max(LONGEST_CHAR));
        if let Some(cut) = self.find_cut(encoder, limit) {
            encoder.encode_with(&self.kept[..cut], &encoder.specials, &encoder.special_ids, false, out)?;
            self.kept.drain(..cut);
            self.searched = limit - cut;
            self.search_at = 2 * self.kept.len();
        }
        Ok(())
    }

    /// The text is over: append the remaining ids to `out`.
    pub fn finish<I: Id>(&mut self, encoder: &Encoder, out: &mut Vec<I>) -> Result<()> {
        let kept = std::mem::take(self).kept;
        encoder.encode_with(&kept, &encoder.specials, &encoder.special_ids, false, out)
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
