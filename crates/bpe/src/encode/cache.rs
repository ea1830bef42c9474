//! What words were encoded to, so that each is merged once.
//!
//! A word of at most 15 bytes and up to three ids share one entry of 32 bytes, so that a look-up touches one cache
//! line. Longer words and longer results are kept apart. The cache forgets everything when it is full: words that
//! matter come back at once.

use hashbrown::HashMap;

use crate::lowlevel::{filled, prefetch};
use crate::words::{Key, Seed};

/// How many ids an entry holds itself.
pub(crate) const INLINE: usize = 3;
/// Words longer than this are not kept.
const LONGEST: usize = 256;
/// Entries that a table may grow to, 32 bytes each.
const MAX_ENTRIES: usize = 1 << 20;
/// Ids that results longer than `INLINE`, and those of long words, may take in all.
const MAX_SPILLED: usize = 1 << 20;

/// A word and its ids. An entry whose `len` exceeds `INLINE` has them in `spilled`, from `ids[0]` on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) ids: [u32; INLINE],
    pub(crate) len: u32,
}

/// A cache of encoded words; each thread has its own.
#[derive(Clone, Debug)]
pub(crate) struct WordCache {
    /// Open addressing; a power of two, at most half full.
    table: Vec<Entry>,
    num_entries: usize,
    spilled: Vec<u32>,
    long: HashMap<Box<[u8]>, (u32, u32)>,
    seed: Seed,
}

impl WordCache {
    /// A cache with room for `num_words` before it grows or forgets.
    pub(crate) fn new(num_words: usize) -> WordCache {
        let num_entries = (2 * num_words).next_power_of_two().clamp(1 << 10, MAX_ENTRIES);
        WordCache {
            table: filled(Entry::default(), num_entries),
            num_entries: 0,
            spilled: Vec::with_capacity(num_entries / 8),
            long: HashMap::new(),
            seed: Seed::random(),
        }
    }

    /// Where the search for `key` begins; its cache line is asked for.
    #[inline(always)]
    pub(crate) fn approach(&self, key: Key) -> usize {
        let slot = (key.hash(self.seed) >> (64 - self.table.len().trailing_zeros())) as usize;
        prefetch(&self.table, slot);
        slot
    }

    /// The entry of `key`, searched from `slot` on.
    #[inline(always)]
    pub(crate) fn find(&self, key: Key, mut slot: usize) -> Option<&Entry> {
        let mask = self.table.len() - 1;
        loop {
            let entry = &self.table[slot & mask];
            if entry.key == key {
                return Some(entry);
            }
            if entry.key.is_empty() {
                return None;
            }
            slot += 1;
        }
    }

    /// The ids of an entry.
    #[inline]
    pub(crate) fn ids<'c>(&'c self, entry: &'c Entry) -> &'c [u32] {
        let len = entry.len as usize;
        if len <= INLINE {
            &entry.ids[..len]
        } else {
            self.spilled.get(entry.ids[0] as usize..).and_then(|ids| ids.get(..len)).unwrap_or_default()
        }
    }

    /// The ids of a word longer than a key holds.
    #[inline]
    pub(crate) fn find_long(&self, word: &[u8]) -> Option<&[u32]> {
        let &(start, len) = self.long.get(word)?;
        self.spilled.get(start as usize..)?.get(..len as usize)
    }

    /// Remember a word. Unless `may_grow`, nothing is allocated.
    pub(crate) fn insert(&mut self, key: Key, ids: &[u32], may_grow: bool) {
        if 2 * (self.num_entries + 1) > self.table.len() {
            if may_grow && self.table.len() < MAX_ENTRIES {
                self.grow();
            } else {
                self.forget();
            }
        }
        let mut entry = Entry { key, ids: [0; INLINE], len: ids.len() as u32 };
        if ids.len() <= INLINE {
            entry.ids[..ids.len()].copy_from_slice(ids);
        } else {
            let Some(start) = self.spill(ids, may_grow) else { return };
            entry.ids[0] = start;
        }
        self.place(entry);
        self.num_entries += 1;
    }

    /// Remember a word longer than a key holds.
    pub(crate) fn insert_long(&mut self, word: &[u8], ids: &[u32], may_grow: bool) {
        if may_grow && word.len() <= LONGEST && let Some(start) = self.spill(ids, may_grow) {
            self.long.insert(word.into(), (start, ids.len() as u32));
        }
    }

    fn spill(&mut self, ids: &[u32], may_grow: bool) -> Option<u32> {
        let limit = if may_grow { MAX_SPILLED } else { self.spilled.capacity() };
        if self.spilled.len() + ids.len() > limit {
            self.forget();
            return None;
        }
        let start = self.spilled.len() as u32;
        self.spilled.extend_from_slice(ids);
        Some(start)
    }

    fn forget(&mut self) {
        self.table.fill(Entry::default());
        self.num_entries = 0;
        self.spilled.clear();
        self.long.clear();
    }

    fn grow(&mut self) {
        let doubled = filled(Entry::default(), 2 * self.table.len());
        let old = std::mem::replace(&mut self.table, doubled);
        for entry in old.into_iter().filter(|entry| !entry.key.is_empty()) {
            self.place(entry);
        }
    }

    fn place(&mut self, entry: Entry) {
        let mask = self.table.len() - 1;
        let mut slot = self.approach(entry.key);
        while !self.table[slot & mask].key.is_empty() {
            slot += 1;
        }
        self.table[slot & mask] = entry;
    }
}
