//! How often each word (pre-token) occurs.
//!
//! Nine words in ten are at most 15 bytes long. Such a word and its length fit into 16 bytes, which are compared
//! and hashed as two integers without following a pointer; an entry is one place in one flat table. Look-ups
//! arrive in groups, so that the table's cache lines are asked for well before they are needed. Longer words live
//! in an ordinary hash map.

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::HashMap;

use crate::lowlevel::{filled, prefetch};

/// The longest word that is packed into a key.
pub(crate) const SHORT: usize = 15;

/// A word of at most 15 bytes, with its length in the last byte. No word has the key 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    low: u64,
    high: u64,
}

impl Key {
    /// Pack `text[start..end]`, of which the caller knows that it is 1 to 15 bytes long.
    #[inline(always)]
    pub(crate) fn pack(text: &[u8], start: usize, end: usize) -> Key {
        let len = end - start;
        let bytes = match text.get(start..).and_then(|rest| rest.first_chunk::<16>()) {
            Some(&wide) => wide,
            None => {
                let mut padded = [0; 16];
                padded[..len].copy_from_slice(&text[start..end]);
                padded
            }
        };
        let value = u128::from_le_bytes(bytes) & MASKS[len & 15] | (len as u128) << 120;
        Key { low: value as u64, high: (value >> 64) as u64 }
    }

    /// The word itself: 16 bytes, of which the first `len` are the word.
    #[inline]
    pub(crate) fn unpack(self) -> ([u8; 16], usize) {
        let bytes = (u128::from(self.low) | u128::from(self.high) << 64).to_le_bytes();
        (bytes, bytes[SHORT] as usize)
    }

    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.high == 0
    }

    /// A hash whose upper bits are good; `seed` differs from process to process, so that nobody can craft a text
    /// whose words all collide.
    #[inline(always)]
    pub(crate) fn hash(self, seed: Seed) -> u64 {
        let product = u128::from(self.low ^ seed.0) * u128::from(self.high ^ seed.1);
        (product as u64) ^ (product >> 64) as u64
    }
}

static MASKS: [u128; 16] = {
    let mut masks = [0; 16];
    let mut len = 1;
    while len < 16 {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};

/// What makes our hashes differ from process to process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64, u64);

impl Seed {
    pub(crate) fn random() -> Seed {
        let state = RandomState::new();
        let draw = |salt: u64| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(salt);
            hasher.finish()
        };
        Seed(draw(1), draw(2) | 1 << 63)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Key,
    count: u64,
}

/// How many look-ups wait together for their cache lines.
pub(crate) const GROUP: usize = 32;

/// Counts of words.
#[derive(Clone, Debug)]
pub struct WordCounts {
    /// Open addressing with linear probing; its length is a power of two, and at most 3/4 of it is full.
    table: Vec<Entry>,
    num_short: usize,
    long: HashMap<Box<[u8]>, u64>,
    seed: Seed,
}

impl Default for WordCounts {
    fn default() -> WordCounts {
        WordCounts {
            table: vec![Entry::default(); 1 << 10],
            num_short: 0,
            long: HashMap::new(),
            seed: Seed::random(),
        }
    }
}

impl WordCounts {
    /// No words yet.
    pub fn new() -> WordCounts {
        WordCounts::default()
    }

    /// Count the words of `text` that begin at `start` and end at `base + ends[..]`; returns where the last ends.
    #[inline(always)]
    pub(crate) fn count(&mut self, text: &[u8], mut start: usize, base: usize, ends: &[u32]) -> usize {
        for group in ends.chunks(GROUP) {
            let mut keys = [(Key::default(), 0); GROUP];
            for (place, &end) in keys.iter_mut().zip(group) {
                let end = base + end as usize;
                if end - start <= SHORT {
                    let key = Key::pack(text, start, end);
                    let hash = key.hash(self.seed);
                    prefetch(&self.table, self.slot(hash));
                    *place = (key, hash);
                } else {
                    self.add_long(&text[start..end], 1);
                }
                start = end;
            }
            for &(key, hash) in keys[..group.len()].iter().filter(|(key, _)| !key.is_empty()) {
                self.add_key(key, hash, 1);
            }
        }
        start
    }

    /// Count `word` `count` times. The empty word is ignored.
    pub fn add(&mut self, word: &[u8], count: u64) {
        if word.is_empty() || count == 0 {
        } else if word.len() > SHORT {
            self.add_long(word, count);
        } else {
            let key = Key::pack(word, 0, word.len());
            self.add_key(key, key.hash(self.seed), count);
        }
    }

    /// Add all of `other`.
    pub fn merge(&mut self, mut other: WordCounts) {
        if other.num_distinct() > self.num_distinct() {
            std::mem::swap(self, &mut other);
        }
        for group in other.table.chunks(GROUP) {
            let hashes = group.iter().map(|entry| entry.key.hash(self.seed)).collect::<Vec<_>>();
            for &hash in &hashes {
                prefetch(&self.table, self.slot(hash));
            }
            for (entry, hash) in group.iter().zip(hashes).filter(|(entry, _)| !entry.key.is_empty()) {
                self.add_key(entry.key, hash, entry.count);
            }
        }
        for (word, count) in other.long.drain() {
            let total = self.long.entry(word).or_insert(0);
            *total = total.saturating_add(count);
        }
    }

    /// How many different words there are.
    pub fn num_distinct(&self) -> usize {
        self.num_short + self.long.len()
    }

    /// Visit every word with its count, in no particular order.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], u64)) {
        for entry in self.table.iter().filter(|entry| !entry.key.is_empty()) {
            let (bytes, len) = entry.key.unpack();
            visit(&bytes[..len], entry.count);
        }
        for (word, &count) in &self.long {
            visit(word, count);
        }
    }

    #[inline(always)]
    fn slot(&self, hash: u64) -> usize {
        (hash >> (64 - self.table.len().trailing_zeros())) as usize
    }

    #[inline(always)]
    fn add_key(&mut self, key: Key, hash: u64, count: u64) {
        let mask = self.table.len() - 1;
        let mut slot = self.slot(hash);
        loop {
            let entry = &mut self.table[slot & mask];
            if entry.key == key {
                entry.count = entry.count.saturating_add(count);
                return;
            }
            if entry.key.is_empty() {
                *entry = Entry { key, count };
                self.num_short += 1;
                if self.num_short * 4 > self.table.len() * 3 {
                    self.grow();
                }
                return;
            }
            slot += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = filled(Entry::default(), self.table.len() * 2);
        let old = std::mem::replace(&mut self.table, doubled);
        let mask = self.table.len() - 1;
        for entry in old.into_iter().filter(|entry| !entry.key.is_empty()) {
            let mut slot = self.slot(entry.key.hash(self.seed));
            while !self.table[slot & mask].key.is_empty() {
                slot += 1;
            }
            self.table[slot & mask] = entry;
        }
    }

    #[cold]
    fn add_long(&mut self, word: &[u8], count: u64) {
        let total = match self.long.get_mut(word) {
            Some(total) => total,
            None => self.long.entry(word.into()).or_insert(0),
        };
        *total = total.saturating_add(count);
    }
}
