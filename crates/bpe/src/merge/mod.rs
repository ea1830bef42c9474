//! Learning merges: again and again, join the pair of neighbours that occurs most often.
//!
//! **The text.** All distinct words lie in one array with a slot for every byte, in which a token's
//! neighbours are read directly (`text`).
//!
//! **The index.** For every pair worth tracking: its count and the positions where it occurs, in rising
//! order. Joining a pair visits just those positions; what it does to the neighbouring pairs is first summed
//! by neighbour and then applied once. A position may have gone stale meanwhile; the slots tell.
//!
//! **The threshold.** A pair's count never rises once both its tokens exist, so a pair that is rarer than
//! every merge still to come need not be tracked. We guess a threshold, track only pairs that reach it, and
//! when those are used up, lower it and index the text again. That is exact, and keeps the index small.
//!
//! **Ties.** Of the pairs with the highest count, the one with the greater (left bytes, right bytes) wins.
//! Counts only fall, so all pairs of the highest count are drawn at once and ordered by their bytes (`ties`).

mod pairs;
mod text;
mod ties;

#[cfg(test)]
mod tests;

use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::{boxed, prefetch, push, reserve, with_capacity};
use crate::threads::Heartbeat;
use crate::words::WordCounts;
use pairs::{Neighbour, Pair, PairHash, Side, bytes_of, key};
use text::{BOUNDARY, INSIDE, Text};
use ties::Ties;

/// A token while merges are learnt: 0 to 255 are the bytes, then one for every merge.
pub type Symbol = u32;

/// A learnt merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The left half.
    pub left: Symbol,
    /// The right half.
    pub right: Symbol,
    /// How often the pair occurred when it was joined.
    pub count: u64,
}

/// What to learn.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// How many merges to learn at most.
    pub num_merges: usize,
    /// Leave pairs alone that occur less often than this; 0 means the same as 1.
    pub min_count: u64,
    /// Merges that are there already and stay as they are; both halves must be bytes or made by earlier ones.
    pub initial: Vec<(Symbol, Symbol)>,
}

/// How far the threshold falls each time: a guess that balances indexing anew against tracking too much.
const THRESHOLD_STEP: u64 = 16;

/// Learn merges from word counts. `on_progress` hears how many are done and may stop the work by returning
/// false.
pub fn learn_merges(
    words: WordCounts,
    options: &MergeOptions,
    on_progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<Merge>> {
    let mut heartbeat = Heartbeat::new(on_progress);
    let mut learner = Learner::new(words)?;
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
    /// The bytes of every token, and their number; none for an initial merge that does not occur.
    tokens: Vec<Box<[u8]>>,
    lens: Vec<u32>,

    threshold: u64,
    pairs: Vec<Pair>,
    pair_of: HashMap<u64, u32, PairHash>,
    positions: Vec<u32>,

    /// Tracked pairs by count; a pair whose count fell since stands too high, and is put right when drawn.
    queue: BinaryHeap<(u64, u32)>,
    ties: Ties,

    left: Side,
    right: Side,
    doubled: Vec<u32>,
}

impl Learner {
    fn new(words: WordCounts) -> Result<Learner> {
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
            ties: Ties::default(),
            left: Side::default(),
            right: Side::default(),
            doubled: Vec::new(),
        })
    }

    /// Join the pairs of merges that are there already, in their order; of new ones none is done meanwhile.
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
                    // It does not occur, nor will any token made of it: nobody will ask for its bytes. To
                    // spell them out would let a few merges, each doubling the last, fill all memory.
                    push(&mut self.lens, 0)?;
                    push(&mut self.tokens, [].into())?;
                }
            }
        }
        self.threshold = u64::MAX;
        self.queue.clear();
        self.ties.clear();
        Ok(())
    }

    fn add_token(&mut self, left: Symbol, right: Symbol) -> Result<Symbol, OutOfMemory> {
        let len = self.lens[left as usize] + self.lens[right as usize];
        push(&mut self.lens, len)?;
        let bytes = boxed(&[&self.tokens[left as usize], &self.tokens[right as usize]])?;
        push(&mut self.tokens, bytes)?;
        Ok((self.tokens.len() - 1) as Symbol)
    }

    /// Find all pairs that reach a threshold, which is chosen when the highest count is known.
    fn index(
        &mut self,
        threshold: impl FnOnce(u64) -> u64,
        beat: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.queue.clear();
        self.pair_of.clear();
        self.pairs.clear();
        self.positions = Vec::new(); // the new ones are allocated below, and need not be there at the same time

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
        self.positions = with_capacity(2 * total)?; // what joining adds is mostly shorter and shorter
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

    /// Track a pair, and make room for it in the queue.
    fn add_pair(&mut self, pair: Pair) -> Result<u32, OutOfMemory> {
        let number = self.pairs.len() as u32;
        self.pair_of.try_reserve(1)?;
        self.queue.try_reserve(1)?;
        push(&mut self.pairs, pair)?;
        self.pair_of.insert(key(pair.left, pair.right), number);
        Ok(number)
    }

    /// Draw the pair with the highest count; of several, the one with the greater bytes.
    fn best_pair(&mut self) -> Result<Option<u32>, OutOfMemory> {
        loop {
            if self.ties.is_empty() {
                let Some(&(count, _)) = self.queue.peek() else { return Ok(None) };
                self.ties.count = count;
                while let Some(&(count, pair)) = self.queue.peek() {
                    if count != self.ties.count {
                        break;
                    }
                    self.queue.pop();
                    match self.pairs[pair as usize].count {
                        now if now == count => self.ties.push_unordered(pair)?,
                        now if now >= self.threshold => self.queue.push((now, pair)),
                        _ => {}
                    }
                }
                let Learner { ties, pairs, tokens, .. } = self;
                ties.order(|a, b| bytes_of(pairs, tokens, a) > bytes_of(pairs, tokens, b));
            }
            let Learner { ties, pairs, tokens, .. } = self;
            let Some(pair) = ties.pop(|a, b| bytes_of(pairs, tokens, a) > bytes_of(pairs, tokens, b)) else {
                continue;
            };
            match self.pairs[pair as usize].count {
                now if now == self.ties.count => return Ok(Some(pair)),
                now if now >= self.threshold => self.queue.push((now, pair)),
                _ => {}
            }
        }
    }

    /// Join a pair wherever it stands.
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
                continue; // stale: one of the two has become part of another token
            }
            let end = middle + len_b;
            let (before, after) = (slots[start - 1], slots[end]);
            slots[middle - 1] = INSIDE;
            slots[middle] = INSIDE;
            slots[start] = made;
            slots[end - 1] = made;
            if before == made {
                // The neighbour was made a moment ago, and has counted our left half as what follows it.
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

    /// A pair lost some of its occurrences.
    #[inline]
    fn lower(&mut self, left: Symbol, right: Symbol, weight: u64) {
        if let Some(&number) = self.pair_of.get(&key(left, right)) {
            self.pairs[number as usize].count -= weight;
        }
    }

    /// Begin to track a new pair if it is frequent enough; returns where its positions go.
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
        if count == self.ties.count && !self.ties.is_empty() {
            let Learner { ties, pairs, tokens, .. } = self;
            ties.push(number, |a, b| bytes_of(pairs, tokens, a) > bytes_of(pairs, tokens, b))?;
        } else {
            self.queue.push((count, number));
        }
        Ok(Some(first))
    }
}
