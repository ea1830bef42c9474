//! Where a text may be cut so that its halves, taken one after the other, give what the whole gives.
//!
//! This is what lets threads share a file and lets a stream be encoded as it arrives. A cut is safe where the
//! pattern has a boundary whatever else the text holds, and no special token lies across it.

use crate::pattern::Pattern;
use crate::special::Specials;

/// The first safe cut at or after `from`, or the end of the text.
///
/// Of a user's expression only special tokens are known to end pre-tokens; `text` must then begin at a safe cut.
pub fn next_cut(pattern: &Pattern, specials: &Specials, text: &[u8], from: usize) -> usize {
    if from >= text.len() {
        return text.len();
    }
    if let Pattern::User(_) = pattern {
        return specials.next_end(text, from).unwrap_or(text.len());
    }
    (from..text.len())
        .find(|&position| is_safe(pattern, specials, text, position))
        .unwrap_or(text.len())
}

/// The last safe cut in `from..=to`, if there is one.
pub fn last_cut(pattern: &Pattern, specials: &Specials, text: &[u8], from: usize, to: usize) -> Option<usize> {
    (from.max(1)..=to.min(text.len())).rev().find(|&position| is_safe(pattern, specials, text, position))
}

fn is_safe(pattern: &Pattern, specials: &Specials, text: &[u8], position: usize) -> bool {
    pattern.is_boundary(text, position) && !specials.covers(text, position)
}
