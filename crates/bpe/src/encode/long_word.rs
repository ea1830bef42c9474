//! Merging a long word, block by block.
//!
//! **A block.** Each rank is processed once, with all candidate positions of its pair. First the pair is joined there,
//! from left to right. Then the pairs of the new tokens and their neighbours are recorded under their ranks, which are
//! all higher. A block has one slot per byte. A token writes its symbol into its first and its last slot, so its
//! neighbours are read directly.
//!
//! **Why blocks.** The memory for a word of many megabytes would cause a page fault per page, and each step would miss
//! the processor's caches. A block avoids both.
//!
//! **Why the result is exact.** A sequence of tokens is the result of merging its bytes if this holds for each two
//! neighbours. The first merge across a boundary between two tokens would find both as they are when merged alone,
//! because nothing has crossed the boundaries around them before. So after a block, only the two tokens at its joint
//! must be checked. The last tokens of a block may change with the following bytes, so they are merged again with the
//! next block. If a joint fails, a larger block is merged again: in the worst case the whole word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::ranks::{NONE, Ranks, product};
use crate::error::OutOfMemory;
use crate::lowlevel::{push, reserve};
use crate::merge::Symbol;

/// The result of an operation that allocates.
type Memory = Result<(), OutOfMemory>;

/// Small enough for slots and positions to stay in the processor's cache.
const BLOCK: usize = 1 << 15;
/// The number of tokens of a block that are merged again with the next, unless they are most of it. Few texts need more.
const TAIL: usize = 32;
/// A slot inside a token, neither its first nor its last.
const INSIDE: Symbol = Symbol::MAX;

/// Merge a word and append its symbols to `out`.
pub(super) fn merge(ranks: &Ranks, word: &[u8], out: &mut Vec<Symbol>) -> Memory {
    merge_in_blocks(ranks, word, BLOCK, out)
}

fn merge_in_blocks(ranks: &Ranks, word: &[u8], mut block_len: usize, out: &mut Vec<Symbol>) -> Memory {
    let first = out.len();
    let mut waiting = Waiting::default();
    let mut done = 0; // the number of bytes whose symbols are in `out`
    loop {
        let joint = out.len();
        let end = word.len().min(done + block_len);
        waiting.merge_block(ranks, &word[done..end], out)?;
        if joint > first && !waiting.holds(ranks, word, done, (out[joint - 1], out[joint]))? {
            out.truncate(joint);
            done -= drop_last(ranks, out, out.len() - first, block_len);
            block_len *= 2;
        } else if end == word.len() {
            return Ok(());
        } else {
            done = end - drop_last(ranks, out, TAIL.min(out.len() - joint), (end - done) / 2);
        }
    }
}

/// Remove up to `most` symbols from the end, with at most `most_bytes` in total; return their number of bytes.
fn drop_last(ranks: &Ranks, symbols: &mut Vec<Symbol>, most: usize, most_bytes: usize) -> usize {
    let mut num_bytes = 0;
    for _ in 0..most {
        let Some(symbol) = symbols.pop_if(|symbol| num_bytes + ranks.len(*symbol) <= most_bytes) else {
            break;
        };
        num_bytes += ranks.len(symbol);
    }
    num_bytes
}

/// The positions of pairs by rank.
#[derive(Default)]
struct Waiting {
    /// The ranks that have a list, the lowest on top.
    queue: BinaryHeap<Reverse<u32>>,
    list_of: HashMap<u32, usize>,
    lists: Vec<Vec<usize>>,
    /// The rank that was recorded last, and its list; the next rank is often the same.
    last: Option<(u32, usize)>,
    /// Empty lists for reuse.
    spare: Vec<Vec<usize>>,
}

impl Waiting {
    /// Merge a block and append its symbols to `out`.
    fn merge_block(&mut self, ranks: &Ranks, block: &[u8], out: &mut Vec<Symbol>) -> Memory {
        let first = out.len();
        reserve(out, block.len())?;
        out.extend(block.iter().map(|&byte| Symbol::from(byte)));
        let slots = &mut out[first..];
        for (position, pair) in block.windows(2).enumerate() {
            self.note(ranks.rank_of_bytes(pair[0], pair[1]), position)?;
        }
        while let Some((rank, mut positions)) = self.pop_lowest() {
            let (left, right) = ranks.halves(rank);
            if left == right {
                positions.sort_unstable(); // of overlapping pairs, the leftmost is joined
            }
            positions.retain(|&start| join(ranks, slots, rank, start));
            for &start in &positions {
                self.note_neighbours(ranks, slots, product(rank), start)?;
            }
            positions.clear();
            push(&mut self.spare, positions)?;
        }
        let num_symbols = compact(ranks, slots);
        out.truncate(first + num_symbols);
        Ok(())
    }

    /// Whether merging the bytes of two tokens, the second of which begins at `middle`, yields these two tokens.
    fn holds(
        &mut self,
        ranks: &Ranks,
        word: &[u8],
        middle: usize,
        (left, right): (Symbol, Symbol),
    ) -> Result<bool, OutOfMemory> {
        let mut merged = Vec::new();
        self.merge_block(ranks, &word[middle - ranks.len(left)..middle + ranks.len(right)], &mut merged)?;
        Ok(merged == [left, right])
    }

    /// Record the pairs of the new token at `start` with its neighbours.
    #[inline]
    fn note_neighbours(&mut self, ranks: &Ranks, slots: &[Symbol], made: Symbol, start: usize) -> Memory {
        if start > 0 && slots[start - 1] != made {
            let before = slots[start - 1];
            self.note(ranks.rank(before, made), start - ranks.len(before))?;
        }
        if let Some(&after) = slots.get(start + ranks.len(made)) {
            self.note(ranks.rank(made, after), start)?;
        }
        Ok(())
    }

    /// Record a pair at `position` under its rank, if it has one.
    #[inline]
    fn note(&mut self, rank: u32, position: usize) -> Memory {
        if rank == NONE {
            return Ok(());
        }
        let list = match self.last {
            Some((last, list)) if last == rank => list,
            _ => match self.list_of.get(&rank) {
                Some(&list) => list,
                None => self.begin(rank)?,
            },
        };
        self.last = Some((rank, list));
        push(&mut self.lists[list], position)
    }

    /// Create the list of a rank.
    fn begin(&mut self, rank: u32) -> Result<usize, OutOfMemory> {
        let list = self.lists.len();
        push(&mut self.lists, self.spare.pop().unwrap_or_default())?;
        self.list_of.try_reserve(1)?;
        self.list_of.insert(rank, list);
        self.queue.try_reserve(1)?;
        self.queue.push(Reverse(rank));
        Ok(list)
    }

    /// Take the positions of the lowest rank; `None` if none is left.
    fn pop_lowest(&mut self) -> Option<(u32, Vec<usize>)> {
        let Some(Reverse(rank)) = self.queue.pop() else {
            self.lists.clear();
            self.last = None;
            return None;
        };
        let list = self.list_of.remove(&rank)?;
        Some((rank, std::mem::take(&mut self.lists[list])))
    }
}

/// Join the pair of this rank at `start`, unless one of its tokens is part of another token now.
#[inline]
fn join(ranks: &Ranks, slots: &mut [Symbol], rank: u32, start: usize) -> bool {
    let (left, right) = ranks.halves(rank);
    let middle = start + ranks.len(left);
    if slots[start] != left || slots.get(middle) != Some(&right) {
        return false;
    }
    let end = middle + ranks.len(right);
    slots[middle - 1] = INSIDE;
    slots[middle] = INSIDE;
    slots[start] = product(rank);
    slots[end - 1] = product(rank);
    true
}

/// Move the symbols of all tokens to the front, and return their number.
fn compact(ranks: &Ranks, slots: &mut [Symbol]) -> usize {
    let (mut position, mut num_symbols) = (0, 0);
    while let Some(&symbol) = slots.get(position) {
        slots[num_symbols] = symbol;
        num_symbols += 1;
        position += ranks.len(symbol);
    }
    num_symbols
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    /// Words of few letters and random merges, so that later bytes often change earlier tokens. Blocks of every size
    /// yield the same result as searching the lowest rank after each step.
    #[test]
    fn one_block_many_blocks_and_the_short_method_merge_alike() -> Result<()> {
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..2_000 {
            let num_letters = 1 + round % 3;
            let mut tokens: Vec<Vec<u8>> = (0..num_letters).map(|letter| vec![b'a' + letter as u8]).collect();
            let mut merges = Vec::new();
            for _ in 0..12 {
                let (left, right) = (tokens[draw(tokens.len())].clone(), tokens[draw(tokens.len())].clone());
                let token = [&left[..], &right].concat();
                if !tokens.contains(&token) {
                    tokens.push(token);
                    merges.push((left, right));
                }
            }
            let (ranks, _) = Ranks::new(&merges)?;
            let word: Vec<u8> = (0..1 + draw(64)).map(|_| b'a' + draw(num_letters) as u8).collect();
            let mut expected = vec![7];
            ranks.merge_word(&word, &mut expected)?;
            for block_len in [1, 2, 3, 5, 8, 13, 21, 64] {
                let mut merged = vec![7];
                merge_in_blocks(&ranks, &word, block_len, &mut merged)?;
                let shown = String::from_utf8_lossy(&word);
                assert_eq!(merged, expected, "{shown} in blocks of {block_len} by {merges:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_word_of_many_blocks_is_merged_as_a_whole() -> Result<()> {
        let merges = [("a", "a"), ("aa", "aa"), ("aa", "a"), ("b", "a"), ("aaa", "ba")];
        let (ranks, _) = Ranks::new(&merges.map(|(left, right)| (left.into(), right.into())))?;
        for word in [vec![b'a'; 3 * BLOCK + 3], [b"aab".repeat(BLOCK), vec![b'c']].concat()] {
            let (mut in_blocks, mut at_once) = (Vec::new(), Vec::new());
            merge(&ranks, &word, &mut in_blocks)?;
            Waiting::default().merge_block(&ranks, &word, &mut at_once)?;
            assert_eq!(in_blocks, at_once);
        }
        Ok(())
    }
}
