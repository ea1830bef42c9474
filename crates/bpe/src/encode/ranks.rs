//! Merges as a table, and how one word is merged by it.
//!
//! The rank of a merge is its place in the order of creation. Merging a word means: as long as some pair of
//! neighbours has a merge, join the one with the lowest rank, the leftmost first.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::error::{Error, Result};
use crate::merge::Symbol;

/// Rank of a pair that has no merge.
const NONE: u32 = u32::MAX;
/// Words up to this length are merged by looking for the lowest rank again after every step.
const SHORT_WORD: usize = 48;
/// Two symbols and a rank share 63 bits of a table entry.
const SYMBOL_BITS: u32 = 21;
const EMPTY: u64 = u64::MAX;

/// All merges of a vocabulary. Symbols 0 to 255 are the bytes; the others are numbered as merges first make them.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    /// Open addressing: left, right and rank packed into one word.
    entries: Vec<u64>,
    /// What each merge joins, and what it makes.
    halves: Vec<(Symbol, Symbol)>,
    products: Vec<Symbol>,
    /// How many bytes each symbol stands for.
    lens: Vec<u32>,
}

impl Ranks {
    /// Build the table. Halves must be single bytes or made by an earlier merge.
    pub(crate) fn new(merges: &[(Vec<u8>, Vec<u8>)]) -> Result<(Ranks, Vec<Vec<u8>>)> {
        if merges.len() >= (1 << SYMBOL_BITS) - 256 {
            let limit = (1 << SYMBOL_BITS) - 257;
            return Err(Error::Vocabulary(format!("there are {} merges; at most {limit} are supported", merges.len())));
        }
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        let mut symbol_of: HashMap<Vec<u8>, Symbol> = tokens.iter().cloned().zip(0..).collect();
        let mut ranks = Ranks {
            entries: vec![EMPTY; (merges.len() * 2).next_power_of_two().max(16)],
            halves: Vec::with_capacity(merges.len()),
            products: Vec::with_capacity(merges.len()),
            lens: vec![1; 256],
        };
        for (rank, (left, right)) in merges.iter().enumerate() {
            let symbol = |half: &Vec<u8>| {
                symbol_of.get(half).copied().ok_or_else(|| {
                    Error::Vocabulary(format!("merge {rank} uses a token that no earlier merge makes"))
                })
            };
            let (left_symbol, right_symbol) = (symbol(left)?, symbol(right)?);
            let token = [left.as_slice(), right].concat();
            let next = tokens.len() as Symbol;
            let product = *symbol_of.entry(token).or_insert_with_key(|token| {
                tokens.push(token.clone());
                ranks.lens.push(token.len().try_into().unwrap_or(u32::MAX));
                next
            });
            ranks.halves.push((left_symbol, right_symbol));
            ranks.products.push(product);
            ranks.insert(left_symbol, right_symbol, rank as u64);
        }
        Ok((ranks, tokens))
    }

    fn insert(&mut self, left: Symbol, right: Symbol, rank: u64) {
        let mask = self.entries.len() - 1;
        let key = pair_key(left, right);
        let mut slot = self.slot(key);
        while self.entries[slot & mask] != EMPTY {
            if self.entries[slot & mask] >> SYMBOL_BITS == key {
                return; // the same pair again: the earlier merge wins
            }
            slot += 1;
        }
        self.entries[slot & mask] = key << SYMBOL_BITS | rank;
    }

    #[inline(always)]
    fn slot(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    #[inline(always)]
    fn rank(&self, left: Symbol, right: Symbol) -> u32 {
        let mask = self.entries.len() - 1;
        let key = pair_key(left, right);
        let mut slot = self.slot(key);
        loop {
            let entry = self.entries[slot & mask];
            if entry >> SYMBOL_BITS == key {
                return entry as u32 & ((1 << SYMBOL_BITS) - 1);
            }
            if entry == EMPTY {
                return NONE;
            }
            slot += 1;
        }
    }

    /// Merge a word and append its symbols to `out`.
    pub(crate) fn merge_word(&self, word: &[u8], out: &mut Vec<Symbol>) {
        if word.len() <= SHORT_WORD { self.merge_short(word, out) } else { self.merge_long(word, out) }
    }

    fn merge_short(&self, word: &[u8], out: &mut Vec<Symbol>) {
        let mut symbols = [0; SHORT_WORD];
        let mut ranks = [NONE; SHORT_WORD];
        let mut len = word.len();
        for (symbol, &byte) in symbols.iter_mut().zip(word) {
            *symbol = Symbol::from(byte);
        }
        for index in 1..len {
            ranks[index - 1] = self.rank(symbols[index - 1], symbols[index]);
        }
        while len > 1 {
            let (mut lowest, mut at) = (NONE, 0);
            for (index, &rank) in ranks[..len - 1].iter().enumerate() {
                if rank < lowest {
                    (lowest, at) = (rank, index);
                }
            }
            let Some(&product) = self.products.get(lowest as usize) else { break };
            symbols.copy_within(at + 2..len, at + 1);
            ranks.copy_within(at + 1..len, at);
            len -= 1;
            symbols[at] = product;
            ranks[len - 1] = NONE;
            if at + 1 < len {
                ranks[at] = self.rank(product, symbols[at + 1]);
            }
            if at > 0 {
                ranks[at - 1] = self.rank(symbols[at - 1], product);
            }
        }
        out.extend_from_slice(&symbols[..len]);
    }

    /// Every rank is taken up with all its positions from left to right, so no pair is looked at more often than it
    /// is made. A token's symbol stands in the first and the last of the slots it spans.
    ///
    /// A new pair can have a lower rank than the merge that made it only where two merges make the same token; then
    /// the remaining positions wait.
    fn merge_long(&self, word: &[u8], out: &mut Vec<Symbol>) {
        const INSIDE: Symbol = Symbol::MAX;
        let mut slots: Vec<Symbol> = word.iter().map(|&byte| Symbol::from(byte)).collect();
        let mut waiting: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (position, pair) in word.windows(2).enumerate() {
            self.note(&mut waiting, pair[0].into(), pair[1].into(), position);
        }
        while let Some((rank, mut positions)) = waiting.pop_first() {
            let ((left, right), product) = (self.halves[rank as usize], self.products[rank as usize]);
            positions.sort_unstable(); // quick: they come as a few rising sequences
            for (index, &start) in positions.iter().enumerate() {
                let middle = start + self.len(left);
                if slots[start] != left || slots.get(middle) != Some(&right) {
                    continue; // stale: one of the two has become part of another token
                }
                let end = middle + self.len(right);
                slots[middle - 1] = INSIDE;
                slots[middle] = INSIDE;
                slots[start] = product;
                slots[end - 1] = product;
                let mut lowest = NONE;
                if start > 0 {
                    let before = slots[start - 1];
                    lowest = self.note(&mut waiting, before, product, start - self.len(before));
                }
                if let Some(&after) = slots.get(end) {
                    lowest = lowest.min(self.note(&mut waiting, product, after, start));
                }
                if lowest < rank {
                    waiting.entry(rank).or_default().extend(&positions[index + 1..]);
                    break;
                }
            }
        }
        let mut position = 0;
        while let Some(&symbol) = slots.get(position) {
            out.push(symbol);
            position += self.len(symbol);
        }
    }

    /// Remember that `left` at `position` and `right` behind it are a pair, if they have a merge; return its rank.
    fn note(&self, waiting: &mut BTreeMap<u32, Vec<usize>>, left: Symbol, right: Symbol, position: usize) -> u32 {
        let rank = self.rank(left, right);
        if rank != NONE {
            waiting.entry(rank).or_default().push(position);
        }
        rank
    }

    #[inline]
    fn len(&self, symbol: Symbol) -> usize {
        self.lens[symbol as usize] as usize
    }
}

#[inline(always)]
fn pair_key(left: Symbol, right: Symbol) -> u64 {
    u64::from(left) << SYMBOL_BITS | u64::from(right)
}
