//! The table of merges, and merging one word with it.
//!
//! The rank of a merge is its position in the order of creation. Merging a word means: while some pair of neighbours
//! has a merge, join the pair with the lowest rank, the leftmost first.

use hashbrown::HashMap;

use super::long_word;
use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::{Keys, Task, boxed, dispatch, prefetch, reserve, with_capacity};
use crate::merge::Symbol;

/// The rank of a pair without a merge.
pub(super) const NONE: u32 = u32::MAX;
/// Words up to this length are merged by searching the lowest rank after each step.
const SHORT_WORD: usize = 64;
/// Two symbols and a rank share 63 bits of a table entry.
const SYMBOL_BITS: u32 = 21;
const EMPTY: u64 = u64::MAX;

/// All merges of a vocabulary. Symbols 0 to 255 are the bytes, and the merge of rank `r` produces symbol
/// `256 + r`.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    /// Open addressing: left, right and rank packed into one word.
    entries: Vec<u64>,
    /// The ranks of all pairs of bytes.
    of_bytes: Vec<u32>,
    /// The pair of each merge.
    halves: Vec<(Symbol, Symbol)>,
    /// The number of bytes of each symbol.
    lens: Vec<u32>,
}

impl Ranks {
    /// Build the table; also return the bytes of each symbol.
    ///
    /// Both halves of a merge must be bytes or results of earlier merges, and no two merges may produce the same token.
    /// Hence no pair with a lower rank appears while a word is merged, and "lowest rank first" is the same as "merges in
    /// order".
    pub(crate) fn new(merges: &[(Vec<u8>, Vec<u8>)]) -> Result<(Ranks, Vec<Box<[u8]>>)> {
        const LIMIT: usize = (1 << SYMBOL_BITS) - 257;
        if merges.len() > LIMIT {
            return Err(Error::Vocabulary(format!(
                "there are {} merges; at most {LIMIT} are supported",
                merges.len()
            )));
        }
        let num_symbols = 256 + merges.len();
        let mut tokens: Vec<Box<[u8]>> = with_capacity(num_symbols)?;
        let mut symbol_of: HashMap<Box<[u8]>, Symbol> = HashMap::new();
        symbol_of.try_reserve(num_symbols).map_err(OutOfMemory::from)?;
        for byte in 0..=255u8 {
            tokens.push([byte].into());
            symbol_of.insert([byte].into(), byte.into());
        }
        let mut ranks = Ranks {
            entries: filled(EMPTY, (merges.len() * 2).next_power_of_two().max(16))?,
            of_bytes: filled(NONE, 1 << 16)?,
            halves: with_capacity(merges.len())?,
            lens: with_capacity(num_symbols)?,
        };
        ranks.lens.resize(256, 1);
        for (rank, (left, right)) in merges.iter().enumerate() {
            let complain = |what: &str| Error::Vocabulary(format!("merge {rank} {what}"));
            let symbol = |half: &Vec<u8>| {
                symbol_of
                    .get(half.as_slice())
                    .copied()
                    .ok_or_else(|| complain("uses a token that no earlier merge makes"))
            };
            let (left_symbol, right_symbol) = (symbol(left)?, symbol(right)?);
            let token = boxed(&[left, right])?;
            let len = u32::try_from(token.len()).map_err(|_| complain("makes a token longer than 4 GiB"))?;
            if symbol_of.insert(boxed(&[&token])?, product(rank as u32)).is_some() {
                return Err(complain("makes a token that exists already"));
            }
            tokens.push(token);
            ranks.lens.push(len);
            ranks.halves.push((left_symbol, right_symbol));
            if let (&[left], &[right]) = (left.as_slice(), right.as_slice()) {
                ranks.of_bytes[usize::from(left) << 8 | usize::from(right)] = rank as u32;
            }
            ranks.insert(left_symbol, right_symbol, rank as u64);
        }
        Ok((ranks, tokens))
    }

    fn insert(&mut self, left: Symbol, right: Symbol, rank: u64) {
        let mask = self.entries.len() - 1;
        let key = pair_key(left, right);
        let mut slot = self.slot(key);
        while self.entries[slot & mask] != EMPTY {
            slot += 1;
        }
        self.entries[slot & mask] = key << SYMBOL_BITS | rank;
    }

    #[inline(always)]
    fn slot(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    #[inline(always)]
    pub(super) fn rank_of_bytes(&self, left: u8, right: u8) -> u32 {
        self.of_bytes[usize::from(left) << 8 | usize::from(right)]
    }

    /// Prefetch the entry that `rank` will read.
    #[inline(always)]
    fn approach(&self, left: Symbol, right: Symbol) {
        prefetch(&self.entries, self.slot(pair_key(left, right)));
    }

    #[inline(always)]
    pub(super) fn rank(&self, left: Symbol, right: Symbol) -> u32 {
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
    pub(crate) fn merge_word(&self, word: &[u8], out: &mut Vec<Symbol>) -> Result<(), OutOfMemory> {
        reserve(out, word.len())?;
        match word.len() {
            0 => {}
            1..=16 => dispatch(MergeShort::<16> { ranks: self, word, out }),
            17..=SHORT_WORD => dispatch(MergeShort::<SHORT_WORD> { ranks: self, word, out }),
            _ => long_word::merge(self, word, out)?,
        }
        Ok(())
    }

    /// Whether some merge joins this symbol with another.
    pub(super) fn uses(&self, symbol: Symbol) -> bool {
        self.halves.iter().any(|&(left, right)| left == symbol || right == symbol)
    }

    /// The pair of the merge of this rank.
    #[inline]
    pub(super) fn halves(&self, rank: u32) -> (Symbol, Symbol) {
        self.halves[rank as usize]
    }

    /// The number of bytes of a symbol.
    #[inline]
    pub(super) fn len(&self, symbol: Symbol) -> usize {
        self.lens[symbol as usize] as usize
    }
}

/// A vector of `len` equal elements.
fn filled<T: Clone>(element: T, len: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut elements = with_capacity(len)?;
    elements.resize(len, element);
    Ok(elements)
}

/// Merge a word of at most `N` bytes by searching the lowest rank after each step.
struct MergeShort<'r, 'w, 'o, const N: usize> {
    ranks: &'r Ranks,
    word: &'w [u8],
    out: &'o mut Vec<Symbol>,
}

impl<const N: usize> Task for MergeShort<'_, '_, '_, N> {
    type Output = ();

    #[inline(always)]
    fn run<K: Keys>(self) {
        const PLACE_BITS: u32 = SHORT_WORD.trailing_zeros();
        let MergeShort { ranks, word, out } = self;
        let mut symbols = [0; N];
        // For each symbol and the next: the rank of their merge and its position.
        let mut merges = [NONE; N];
        for (symbol, &byte) in symbols.iter_mut().zip(word) {
            *symbol = Symbol::from(byte);
        }
        let ranked =
            |rank: u32, place: usize| if rank == NONE { NONE } else { rank << PLACE_BITS | place as u32 };
        for (place, pair) in word.windows(2).enumerate().take(N) {
            merges[place] = ranked(ranks.rank_of_bytes(pair[0], pair[1]), place);
        }
        // One bit for each remaining symbol.
        let mut left = !0u64 >> (64 - word.len());
        loop {
            let lowest = merges.iter().fold(NONE, |lowest, &merge| lowest.min(merge));
            if lowest == NONE {
                break;
            }
            let at = lowest as usize % SHORT_WORD;
            let behind = left & (!1 << at);
            let gone = behind.trailing_zeros() as usize % SHORT_WORD;
            left &= !(1 << gone);
            symbols[at % N] = product(lowest >> PLACE_BITS);
            merges[gone % N] = NONE;
            // Both neighbours are looked up at the same time, even if one does not exist.
            let made = symbols[at % N];
            let behind = behind & (behind - 1);
            let before = left & !(!0 << at);
            let next = behind.trailing_zeros() as usize;
            let previous = 63usize.wrapping_sub(before.leading_zeros() as usize);
            ranks.approach(symbols[previous % N], made);
            merges[at % N] = if behind == 0 { NONE } else { ranked(ranks.rank(made, symbols[next % N]), at) };
            if before != 0 {
                merges[previous % N] = ranked(ranks.rank(symbols[previous % N], made), previous);
            }
        }
        while left != 0 {
            out.push(symbols[left.trailing_zeros() as usize % N]);
            left &= left - 1;
        }
    }
}

#[inline(always)]
fn pair_key(left: Symbol, right: Symbol) -> u64 {
    u64::from(left) << SYMBOL_BITS | u64::from(right)
}

/// The symbol that the merge of this rank produces.
#[inline(always)]
pub(super) fn product(rank: u32) -> Symbol {
    256 + rank
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(merges: &[(&str, &str)]) -> Result<Ranks> {
        let merges: Vec<_> = merges
            .iter()
            .map(|(left, right)| (left.as_bytes().to_vec(), right.as_bytes().to_vec()))
            .collect();
        Ranks::new(&merges).map(|(ranks, _)| ranks)
    }

    #[test]
    fn the_lowest_rank_is_merged_first_and_of_equals_the_leftmost() -> Result<()> {
        let ranks = ranks(&[("a", "a"), ("b", "c"), ("a", "b"), ("aa", "a")])?;
        let merged = |word: &str| {
            let mut symbols = Vec::new();
            ranks.merge_word(word.as_bytes(), &mut symbols).map(|()| symbols)
        };
        assert_eq!(merged("aaa")?, [259]);
        assert_eq!(merged("aaaa")?, [256, 256]);
        assert_eq!(merged("abc")?, [97, 257]);
        assert_eq!(merged("aab")?, [256, 98]);
        assert_eq!(merged("x")?, [120]);
        assert_eq!(merged("")?, []);
        for len in [SHORT_WORD, SHORT_WORD + 1, 1000] {
            assert_eq!(
                merged(&"a".repeat(len))?.len(),
                len / 2,
                "all tokens are pairs, except the last if the length is odd"
            );
        }
        Ok(())
    }

    #[test]
    fn inconsistent_merges_are_rejected() {
        for merges in [
            &[("a", "bc")][..],
            &[("a", "b"), ("a", "b")],
            &[("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")],
        ] {
            assert!(matches!(ranks(merges), Err(Error::Vocabulary(_))));
        }
    }
}
