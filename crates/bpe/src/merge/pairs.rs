//! Tracked pairs of neighbours, and the changes that joining a pair causes in other pairs.

use std::hash::{BuildHasherDefault, Hasher};

use super::Symbol;
use crate::error::OutOfMemory;
use crate::lowlevel::with_capacity;

/// A pair of neighbours that is tracked.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) left: Symbol,
    pub(super) right: Symbol,
    pub(super) count: u64,
    /// The start of its positions in `Learner::positions`.
    pub(super) first: usize,
    pub(super) len: usize,
}

/// The changes for the pairs with one particular neighbour.
#[derive(Clone, Copy, Default)]
pub(super) struct Neighbour {
    /// The number of occurrences, weighted by the counts of the words.
    pub(super) weight: u64,
    /// The number of positions.
    pub(super) num_positions: usize,
    /// The index in `Learner::positions` for the next position; `None` if the new pair is too rare to track.
    pub(super) cursor: Option<usize>,
}

/// The neighbours on one side of the pair that is being joined.
#[derive(Default)]
pub(super) struct Side {
    pub(super) by_symbol: Vec<Neighbour>,
    pub(super) met: Vec<Symbol>,
    pub(super) occurrences: Vec<(Symbol, u32)>,
}

impl Side {
    /// Reserve memory for all tokens and for `len` occurrences, so that `meet` does not allocate.
    pub(super) fn prepare(&mut self, num_tokens: usize, len: usize) -> Result<(), OutOfMemory> {
        self.by_symbol.try_reserve(num_tokens - self.by_symbol.len())?;
        self.by_symbol.resize(num_tokens, Neighbour::default());
        self.met.try_reserve(num_tokens.min(len))?;
        if self.occurrences.capacity() < len {
            self.occurrences = with_capacity(len)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn meet(&mut self, symbol: Symbol, weight: u64, position: u32) {
        let neighbour = &mut self.by_symbol[symbol as usize];
        if neighbour.weight == 0 {
            self.met.push(symbol);
        }
        neighbour.weight += weight;
        neighbour.num_positions += 1;
        self.occurrences.push((symbol, position));
    }
}

#[inline]
pub(super) fn key(left: Symbol, right: Symbol) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

pub(super) type PairHash = BuildHasherDefault<PairHasher>;

/// One multiplication: sufficient, because the keys cannot be chosen freely.
#[derive(Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}
