//! The text for learning merges: all distinct words in one array, with a slot for each byte.
//!
//! A token writes its symbol into its first and its last slot, so its neighbours are read directly: the slot before its
//! first and the slot after its last. Words are grouped by their counts, and each group begins at a multiple of 64
//! slots, so a small table contains the count of the word at any position.

use hashbrown::HashMap;

use super::Symbol;
use super::pairs::PairHash;
use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::with_capacity;
use crate::words::VisitWords;

/// A slot outside all words.
pub(super) const BOUNDARY: Symbol = Symbol::MAX;
/// A slot inside a token, neither its first nor its last.
pub(super) const INSIDE: Symbol = Symbol::MAX - 1;
/// Slots that share one entry of the count table, as a power of two.
const GROUP_BITS: u32 = 6;
/// The number of slots between two heartbeats.
const WALK: usize = 1 << 20;

/// All distinct words.
pub(super) struct Text {
    pub(super) slots: Vec<Symbol>,
    group_counts: Vec<u64>,
}

impl Text {
    /// Write all words of two bytes or more into slots, grouped by count.
    pub(super) fn new(words: &impl VisitWords) -> Result<Text> {
        let group = 1usize << GROUP_BITS;
        // Slots needed for each count: a boundary, then each word followed by a boundary.
        let mut next_slot: HashMap<u64, usize, PairHash> = HashMap::default();
        let mut weight: u128 = 0;
        let mut num_bytes = 0;
        words.visit_words(&mut |word, count| {
            weight = weight.saturating_add(u128::from(count) * word.len() as u128);
            if word.len() > 1 {
                next_slot.try_reserve(1).map_err(OutOfMemory::from)?;
                *next_slot.entry(count).or_insert(1) += word.len() + 1;
                num_bytes += word.len() as u64;
            }
            Ok(())
        })?;
        if weight >> 63 != 0 {
            return Err(Error::CountOverflow);
        }
        let mut counts: Vec<u64> = with_capacity(next_slot.len())?;
        counts.extend(next_slot.keys());
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let mut num_slots = 0;
        let mut group_counts = Vec::new();
        for count in counts {
            if let Some(needed) = next_slot.get_mut(&count) {
                let start = num_slots;
                num_slots += needed.next_multiple_of(group);
                group_counts
                    .try_reserve(num_slots / group - group_counts.len())
                    .map_err(OutOfMemory::from)?;
                group_counts.resize(num_slots / group, count);
                *needed = start + 1;
            }
        }
        if num_slots > INSIDE as usize {
            return Err(Error::TooManyWords { bytes: num_bytes, limit: u64::from(INSIDE) });
        }
        let mut slots = with_capacity(num_slots)?;
        slots.resize(num_slots, BOUNDARY);
        words.visit_words(&mut |word, count| {
            if let (true, Some(next)) = (word.len() > 1, next_slot.get_mut(&count)) {
                for (slot, &byte) in slots[*next..].iter_mut().zip(word) {
                    *slot = Symbol::from(byte);
                }
                *next += word.len() + 1;
            }
            Ok(())
        })?;
        Ok(Text { slots, group_counts })
    }

    /// The count of the word at `position`.
    #[inline]
    pub(super) fn count_at(&self, position: usize) -> u64 {
        self.group_counts[position >> GROUP_BITS]
    }

    /// Visit all pairs of neighbouring tokens from left to right, with the position of the first token. `beat` is called
    /// at intervals and can end the walk.
    #[inline]
    pub(super) fn walk_pairs(
        &self,
        lens: &[u32],
        beat: &mut dyn FnMut() -> Result<()>,
        mut visit: impl FnMut(usize, Symbol, Symbol) -> Result<(), OutOfMemory>,
    ) -> Result<()> {
        let mut position = 0;
        let mut beat_at = WALK;
        while let Some(&symbol) = self.slots.get(position) {
            if position >= beat_at {
                beat()?;
                beat_at = position + WALK;
            }
            if symbol == BOUNDARY {
                position += 1;
                continue;
            }
            let next = position + lens[symbol as usize] as usize;
            if let Some(&right) = self.slots.get(next).filter(|&&right| right != BOUNDARY) {
                visit(position, symbol, right)?;
            }
            position = next;
        }
        Ok(())
    }
}
