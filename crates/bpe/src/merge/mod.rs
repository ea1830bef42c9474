//! Learning merges: repeatedly join the most frequent pair of neighbouring tokens.
//!
//! **Text.** All distinct words are stored in one array with a slot for each byte, in which the neighbours of
//! a token are read directly (`text`).
//!
//! **Index.** Each tracked pair has its count and its positions in increasing order. Joining a pair visits only
//! these positions. The changes of the neighbouring pairs are summed by neighbour and then applied once. A
//! position can be outdated; then the slots no longer contain the pair.
//!
//! **Threshold.** The count of a pair never increases once both its tokens exist, so a pair that is rarer than
//! all remaining merges need not be tracked. We guess a threshold and track only pairs that reach it. When no
//! tracked pair is left, we lower the threshold and index the text again. This is exact and keeps the index
//! small.
//!
//! **Ties.** Counts only decrease, so all pairs with the highest count are taken from the queue at once and
//! ordered by the tie rule (`candidates::tie_key`).

mod candidates;
mod pairs;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::{boxed, prefetch, push, reserve, with_capacity};
use crate::threads::Heartbeat;
use crate::words::VisitWords;
use candidates::Candidates;
use pairs::{Neighbour, Pair, PairHash, Side, key};
use text::{BOUNDARY, INSIDE, Text};

/// A token during training: 0 to 255 are the bytes, followed by one symbol for each merge.
pub type Symbol = u32;

/// A learned merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The left half.
    pub left: Symbol,
    /// The right half.
    pub right: Symbol,
    /// The count of the pair when it was joined.
    pub count: u64,
}

/// The options of `learn_merges`.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// The largest number of merges to learn.
    pub num_merges: usize,
    /// Pairs with a smaller count are not joined; 0 means 1.
    pub min_count: u64,
    /// Existing merges, applied first; both halves must be bytes or results of earlier merges.
    pub initial: Vec<(Symbol, Symbol)>,
}

/// The factor by which the threshold decreases: a compromise between repeated indexing and a large index.
const THRESHOLD_STEP: u64 = 16;

/// Learn merges from word counts. `on_progress` is called with the number of learned merges and can stop the
/// training by returning false.
pub fn learn_merges(
    words: impl VisitWords,
    options: &MergeOptions,
    on_progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<Merge>> {
    let mut heartbeat = Heartbeat::new(on_progress);
    let mut learner = Learner::new(&words)?;
    drop(words); // they are in the text now
    learner.repeat(&options.initial, &mut heartbeat)?;
    let mut merges = Vec::new();
    let min_count = options.min_count.max(1);
    while merges.len() < options.num_merges {
        if merges.len().is_multiple_of(64) {
            heartbeat.beat(merges.len())?;
        }
        match learner.best_pair()? {
            Some(pair) => push(&mut merges, learner.join(pair)?)?,
            None if learner.threshold > min_count => {
                let below = learner.threshold / 2;
                let threshold = |highest: u64| (highest / THRESHOLD_STEP).min(below).max(min_count);
                learner.index(threshold, &mut || heartbeat.beat(merges.len()))?;
            }
            None => break,
        }
    }
    heartbeat.finish(merges.len());
    Ok(merges)
}

struct Learner {
    text: Text,
    /// The bytes of each token, and their number; empty for an initial merge that does not occur.
    tokens: Vec<Box<[u8]>>,
    lens: Vec<u32>,

    threshold: u64,
    pairs: Vec<Pair>,
    pair_of: HashMap<u64, u32, PairHash>,
    positions: Vec<u32>,

    /// Tracked pairs by count. An entry whose count has decreased is corrected when it is taken.
    queue: BinaryHeap<(u64, u32)>,
    candidates: Candidates,

    left: Side,
    right: Side,
    doubled: Vec<u32>,
}

impl Learner {
    fn new(words: &impl VisitWords) -> Result<Learner> {
        let tokens: Vec<Box<[u8]>> = (0..=255u8).map(|byte| [byte].into()).collect();
        Ok(Learner {
            text: Text::new(words)?,
            lens: vec![1; tokens.len()],
            tokens,
            threshold: u64::MAX,
            pairs: Vec::new(),
            pair_of: HashMap::default(),
            positions: Vec::new(),
            queue: BinaryHeap::new(),
            candidates: Candidates::default(),
            left: Side::default(),
            right: Side::default(),
            doubled: Vec::new(),
        })
    }

    /// Apply the existing merges in order; progress stays at 0 meanwhile.
    fn repeat(&mut self, initial: &[(Symbol, Symbol)], heartbeat: &mut Heartbeat<'_>) -> Result<()> {
        if initial.is_empty() {
            return Ok(());
        }
        self.index(|_| 1, &mut || heartbeat.beat(0))?;
        for &(left, right) in initial {
            let made = self.tokens.len();
            if made.is_multiple_of(64) {
                heartbeat.beat(0)?;
            }
            if left as usize >= made || right as usize >= made {
                return Err(Error::Vocabulary(format!(
                    "merge {} uses a token that no earlier merge makes",
                    made - 256
                )));
            }
            match self.pair_of.get(&key(left, right)) {
                Some(&pair) => {
                    self.join(pair)?;
                }
                None => {
                    // The pair does not occur, and neither does any token that contains it, so its bytes are
                    // never needed. Storing them would let a few merges, each doubling the last, fill memory.
                    push(&mut self.lens, 0)?;
                    push(&mut self.tokens, [].into())?;
                }
            }
        }
        self.threshold = u64::MAX;
        self.queue.clear();
        self.candidates.clear();
        Ok(())
    }

    fn add_token(&mut self, left: Symbol, right: Symbol) -> Result<Symbol, OutOfMemory> {
        let len = self.lens[left as usize] + self.lens[right as usize];
        push(&mut self.lens, len)?;
        let bytes = boxed(&[&self.tokens[left as usize], &self.tokens[right as usize]])?;
        push(&mut self.tokens, bytes)?;
        Ok((self.tokens.len() - 1) as Symbol)
    }

    /// Index all pairs that reach a threshold, which `threshold` derives from the highest count.
    fn index(
        &mut self,
        threshold: impl FnOnce(u64) -> u64,
        beat: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.queue.clear();
        self.pair_of.clear();
        self.pairs.clear();
        self.positions = Vec::new(); // freed before the new ones are allocated

        let mut found: HashMap<u64, (u64, u32), PairHash> = HashMap::default();
        self.text.walk_pairs(&self.lens, beat, |position, left, right| {
            let (count, len) = match found.get_mut(&key(left, right)) {
                Some(entry) => entry,
                None => {
                    found.try_reserve(1)?;
                    found.entry(key(left, right)).or_insert((0, 0))
                }
            };
            *count += self.text.count_at(position);
            *len += 1;
            Ok(())
        })?;
        let highest = found.values().map(|&(count, _)| count).max().unwrap_or(0);
        self.threshold = threshold(highest);

        let mut total = 0;
        let threshold = self.threshold;
        for (&key, &(count, len)) in found.iter().filter(|(_, (count, _))| *count >= threshold) {
            let (left, right) = ((key >> 32) as Symbol, key as Symbol);
            let number = self.add_pair(Pair { left, right, count, first: total, len: 0 })?;
            self.queue.push((count, number));
            total += len as usize;
        }
        drop(found);
        self.positions = with_capacity(2 * total)?; // room for the positions that joining adds
        self.positions.resize(total, 0);
        self.text.walk_pairs(&self.lens, beat, |position, left, right| {
            if let Some(&number) = self.pair_of.get(&key(left, right)) {
                let pair = &mut self.pairs[number as usize];
                self.positions[pair.first + pair.len] = position as u32;
                pair.len += 1;
            }
            Ok(())
        })
    }

    /// Track a pair, and reserve memory for it in the queue.
    fn add_pair(&mut self, pair: Pair) -> Result<u32, OutOfMemory> {
        let number = self.pairs.len() as u32;
        self.pair_of.try_reserve(1)?;
        self.queue.try_reserve(1)?;
        push(&mut self.pairs, pair)?;
        self.pair_of.insert(key(pair.left, pair.right), number);
        Ok(number)
    }

    /// Take the pair with the highest count; `candidates::tie_key` decides between equal counts.
    fn best_pair(&mut self) -> Result<Option<u32>, OutOfMemory> {
        loop {
            if self.candidates.is_empty() {
                let Some(&(count, _)) = self.queue.peek() else { return Ok(None) };
                self.candidates.count = count;
                while let Some(&(count, pair)) = self.queue.peek() {
                    if count != self.candidates.count {
                        break;
                    }
                    self.queue.pop();
                    match self.pairs[pair as usize].count {
                        now if now == count => self.candidates.push_unordered(pair)?,
                        now if now >= self.threshold => self.queue.push((now, pair)),
                        _ => {}
                    }
                }
                self.candidates.restore_order(&self.pairs, &self.tokens);
            }
            let Some(pair) = self.candidates.pop(&self.pairs, &self.tokens) else { continue };
            match self.pairs[pair as usize].count {
                now if now == self.candidates.count => return Ok(Some(pair)),
                now if now >= self.threshold => self.queue.push((now, pair)),
                _ => {}
            }
        }
    }

    /// Join a pair at all its positions.
    fn join(&mut self, number: u32) -> Result<Merge, OutOfMemory> {
        let Pair { left: a, right: b, count, first, len } = self.pairs[number as usize];
        let made = self.add_token(a, b)?;
        self.pair_of.remove(&key(a, b));
        self.pairs[number as usize].count = 0;

        self.left.prepare(self.tokens.len(), len)?;
        self.right.prepare(self.tokens.len(), len)?;
        reserve(&mut self.doubled, len / 2)?;
        let (len_a, len_b, len_made) =
            (self.lens[a as usize] as usize, self.lens[b as usize] as usize, self.lens[made as usize]);
        let mut doubled_weight = 0;
        for index in first..first + len {
            if let Some(&ahead) = self.positions.get(index + 8) {
                prefetch(&self.text.slots, ahead as usize);
            }
            let start = self.positions[index] as usize;
            let middle = start + len_a;
            let weight = self.text.count_at(start);
            let slots = self.text.slots.as_mut_slice();
            if slots[start] != a || slots[middle] != b {
                continue; // outdated: one of the two is part of another token now
            }
            let end = middle + len_b;
            let (before, after) = (slots[start - 1], slots[end]);
            slots[middle - 1] = INSIDE;
            slots[middle] = INSIDE;
            slots[start] = made;
            slots[end - 1] = made;
            if before == made {
                // The previous token was joined in this loop, and our left half was counted as its neighbour.
                doubled_weight += weight;
                self.doubled.push(start as u32 - len_made);
            } else if before != BOUNDARY {
                self.left.meet(before, weight, start as u32 - self.lens[before as usize]);
            }
            if after != BOUNDARY {
                self.right.meet(after, weight, start as u32);
            }
        }

        for index in 0..self.left.met.len() {
            let x = self.left.met[index];
            let Neighbour { weight, num_positions, .. } = self.left.by_symbol[x as usize];
            self.lower(x, a, weight);
            self.left.by_symbol[x as usize].cursor = self.track(x, made, weight, num_positions)?;
        }
        for index in 0..self.right.met.len() {
            let y = self.right.met[index];
            let Neighbour { weight, num_positions, .. } = self.right.by_symbol[y as usize];
            self.lower(b, y, weight);
            let remaining = if y == a { weight - doubled_weight } else { weight };
            self.right.by_symbol[y as usize].cursor = self.track(made, y, remaining, num_positions)?;
        }
        if let Some(first) = self.track(made, made, doubled_weight, self.doubled.len())? {
            self.positions[first..first + self.doubled.len()].copy_from_slice(&self.doubled);
        }
        self.doubled.clear();
        for side in [&mut self.left, &mut self.right] {
            for &(symbol, position) in &side.occurrences {
                if let Some(cursor) = &mut side.by_symbol[symbol as usize].cursor {
                    self.positions[*cursor] = position;
                    *cursor += 1;
                }
            }
            for &symbol in &side.met {
                side.by_symbol[symbol as usize] = Neighbour::default();
            }
            side.occurrences.clear();
            side.met.clear();
        }
        Ok(Merge { left: a, right: b, count })
    }

    /// Decrease the count of a pair.
    #[inline]
    fn lower(&mut self, left: Symbol, right: Symbol, weight: u64) {
        if let Some(&number) = self.pair_of.get(&key(left, right)) {
            self.pairs[number as usize].count -= weight;
        }
    }

    /// Track a new pair if it is frequent enough; return the start of its positions.
    #[inline]
    fn track(
        &mut self,
        left: Symbol,
        right: Symbol,
        count: u64,
        len: usize,
    ) -> Result<Option<usize>, OutOfMemory> {
        if count < self.threshold || count == 0 {
            return Ok(None);
        }
        let first = self.positions.len();
        self.positions.try_reserve(len)?;
        self.positions.resize(first + len, 0);
        let number = self.add_pair(Pair { left, right, count, first, len })?;
        if count == self.candidates.count && !self.candidates.is_empty() {
            self.candidates.push(number, &self.pairs, &self.tokens)?;
        } else {
            self.queue.push((count, number));
        }
        Ok(Some(first))
    }
}
