//! A hash table for words of at most 15 bytes, laid out for the memory it lives in.
//!
//! A word and its length fit into 16 bytes, which are compared and hashed as two integers without following a
//! pointer. Two entries share a cache line and are compared together: a branch that depends on which of them
//! it is would be guessed wrong too often, and that, with waiting for memory, is all that a look-up costs. So
//! look-ups come in groups: first `approach` for every key, which asks for its cache line, then `find`.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::lowlevel::{filled, prefetch};

/// How many look-ups wait together for their cache lines.
pub(crate) const GROUP: usize = 64;

/// A word of at most 15 bytes, with its length in the last byte. No word has the default key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    low: u64,
    high: u64,
}

impl Key {
    /// The longest word that fits.
    pub(crate) const LONGEST: usize = 15;

    /// Pack `text[start..end]`, which is known to be 1 to 15 bytes long. What surrounds it in `text` does not
    /// matter, but lets it be read at once.
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
        let value = u128::from_le_bytes(bytes) & MASKS[len & Key::LONGEST] | (len as u128) << 120;
        Key { low: value as u64, high: (value >> 64) as u64 }
    }

    /// The word: 16 bytes, of which the last is the length.
    #[inline]
    pub(crate) fn unpack(self) -> [u8; 16] {
        (u128::from(self.low) | u128::from(self.high) << 64).to_le_bytes()
    }

    /// Whether this is no word.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.high == 0
    }
}

/// `MASKS[len]` keeps the first `len` bytes.
static MASKS: [u128; 16] = {
    let mut masks = [0; 16];
    let mut len = 1;
    while len < 16 {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};

/// Two entries in one cache line; the second is empty if the first is.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line<V>([(Key, V); 2]);

/// Open addressing, line by line; the number of lines is a power of two, and at most half the entries are in
/// use.
#[derive(Clone, Debug)]
pub(crate) struct Table<V> {
    lines: Vec<Line<V>>,
    num_entries: usize,
    /// Differs from process to process, so that nobody can craft a text whose words all collide.
    seed: (u64, u64),
}

impl<V: Copy + Default> Table<V> {
    /// A table with room for `num_entries`.
    pub(crate) fn with_room_for(num_entries: usize) -> Table<V> {
        let state = RandomState::new();
        let draw = |salt: u64| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(salt);
            hasher.finish()
        };
        let num_lines = num_entries.next_power_of_two().max(256);
        Table { lines: filled(Line::default(), num_lines), num_entries: 0, seed: (draw(1), draw(2)) }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.num_entries
    }

    /// How many entries there is room for.
    pub(crate) fn room(&self) -> usize {
        self.lines.len()
    }

    /// What look-ups need, by value, so that it stays in registers over many of them.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, V> {
        View { lines: &self.lines, shift: 64 - self.lines.len().trailing_zeros(), seed: self.seed }
    }

    /// The line where the search for `key` begins, which the processor is asked to fetch.
    #[inline(always)]
    pub(crate) fn approach(&self, key: Key) -> usize {
        self.view().approach(key)
    }

    /// The value of `key`, searched from `line` on; a default one if it is new. The table grows when it is
    /// full, which makes every line that was approached before worthless.
    #[inline(always)]
    pub(crate) fn find_or_insert(&mut self, key: Key, line: usize) -> &mut V {
        let mask = self.lines.len() - 1;
        let mut line = line & mask;
        loop {
            let Line(entries) = &self.lines[line];
            let index = usize::from(entries[1].0 == key);
            if entries[index].0 == key {
                return &mut self.lines[line].0[index].1;
            }
            if entries[1].0.is_empty() {
                return self.insert(key);
            }
            line = (line + 1) & mask;
        }
    }

    /// Forget everything, and keep the room.
    pub(crate) fn clear(&mut self) {
        self.lines.fill(Line::default());
        self.num_entries = 0;
    }

    /// All entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, V)> {
        self.lines.iter().flat_map(|line| line.0).filter(|(key, _)| !key.is_empty())
    }

    #[cold]
    #[inline(never)]
    fn insert(&mut self, key: Key) -> &mut V {
        if self.num_entries >= self.room() {
            let doubled = filled(Line::default(), 2 * self.lines.len());
            let old = std::mem::replace(&mut self.lines, doubled);
            for (key, value) in old.into_iter().flat_map(|line| line.0).filter(|(key, _)| !key.is_empty()) {
                *self.place(key) = value;
            }
        }
        self.num_entries += 1;
        self.place(key)
    }

    /// Write a key that is not there yet into the first vacancy.
    fn place(&mut self, key: Key) -> &mut V {
        let mask = self.lines.len() - 1;
        let mut line = self.approach(key) & mask;
        while !self.lines[line].0[1].0.is_empty() {
            line = (line + 1) & mask;
        }
        let entries = &mut self.lines[line].0;
        let vacancy = &mut entries[usize::from(!entries[0].0.is_empty())];
        vacancy.0 = key;
        &mut vacancy.1
    }
}

/// A table at rest.
#[derive(Clone, Copy)]
pub(crate) struct View<'t, V> {
    lines: &'t [Line<V>],
    shift: u32,
    seed: (u64, u64),
}

impl<'t, V> View<'t, V> {
    /// The line where the search for `key` begins, which the processor is asked to fetch.
    #[inline(always)]
    pub(crate) fn approach(self, key: Key) -> usize {
        let product = u128::from(key.low ^ self.seed.0) * u128::from(key.high ^ self.seed.1);
        let hash = product as u64 ^ (product >> 64) as u64;
        let line = (hash >> self.shift) as usize;
        prefetch(self.lines, line);
        line
    }

    /// The value of `key`, searched from `line` on.
    #[inline(always)]
    pub(crate) fn find(self, key: Key, mut line: usize) -> Option<&'t V> {
        let mask = self.lines.len() - 1;
        loop {
            let Line(entries) = &self.lines[line & mask];
            let (found, value) = &entries[usize::from(entries[1].0 == key)];
            if *found == key {
                return Some(value);
            }
            if entries[1].0.is_empty() {
                return None;
            }
            line += 1;
        }
    }
}
