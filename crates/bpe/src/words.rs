//! How often each word (pre-token) occurs.

use hashbrown::HashMap;

use crate::table::{GROUP, Key, Table};

/// Counts of words.
#[derive(Clone, Debug)]
pub struct WordCounts {
    short: Table<u64>,
    long: HashMap<Box<[u8]>, u64>,
}

impl Default for WordCounts {
    fn default() -> WordCounts {
        WordCounts { short: Table::with_room_for(0), long: HashMap::new() }
    }
}

impl WordCounts {
    /// No words yet.
    pub fn new() -> WordCounts {
        WordCounts::default()
    }

    /// Count the words of `text` that begin at `start` and end at `base + ends[..]`; returns where the last
    /// ends.
    #[inline(always)]
    pub(crate) fn count(&mut self, text: &[u8], mut start: usize, base: usize, ends: &[u32]) -> usize {
        for group in ends.chunks(GROUP) {
            let mut lookups = [(Key::default(), 0); GROUP];
            let WordCounts { short, long } = self;
            let table = short.view();
            for (lookup, &end) in lookups.iter_mut().zip(group) {
                let end = base + end as usize;
                if end - start <= Key::LONGEST {
                    let key = Key::pack(text, start, end);
                    *lookup = (key, table.approach(key));
                } else {
                    add_long(long, &text[start..end], 1);
                }
                start = end;
            }
            let room = self.short.room();
            for &(key, mut place) in &lookups[..group.len()] {
                if key.is_empty() {
                    continue;
                }
                if self.short.room() != room {
                    place = self.short.view().approach(key); // the table has grown meanwhile
                }
                let count = self.short.find_or_insert(key, place);
                *count = count.saturating_add(1); // a ready-made count may be the highest already
            }
        }
        start
    }

    /// Count `word` `count` times. The empty word is ignored.
    pub fn add(&mut self, word: &[u8], count: u64) {
        if word.is_empty() || count == 0 {
        } else if word.len() > Key::LONGEST {
            add_long(&mut self.long, word, count);
        } else {
            self.add_short(Key::pack(word, 0, word.len()), count);
        }
    }

    /// Add all of `other`.
    pub fn merge(&mut self, mut other: WordCounts) {
        if other.num_distinct() > self.num_distinct() {
            std::mem::swap(self, &mut other);
        }
        let mut entries = other.short.iter();
        loop {
            let mut group = [(Key::default(), 0); GROUP];
            let mut num_entries = 0;
            for (place, entry) in group.iter_mut().zip(&mut entries) {
                self.short.view().approach(entry.0);
                *place = entry;
                num_entries += 1;
            }
            for &(key, count) in &group[..num_entries] {
                self.add_short(key, count);
            }
            if num_entries < GROUP {
                break;
            }
        }
        for (word, count) in other.long {
            let total = self.long.entry(word).or_insert(0);
            *total = total.saturating_add(count);
        }
    }

    /// How many different words there are.
    pub fn num_distinct(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Visit every word with its count, in no particular order.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], u64)) {
        for (key, count) in self.short.iter() {
            let bytes = key.unpack();
            visit(&bytes[..usize::from(bytes[Key::LONGEST])], count);
        }
        for (word, &count) in &self.long {
            visit(word, count);
        }
    }

    fn add_short(&mut self, key: Key, count: u64) {
        let place = self.short.view().approach(key);
        let total = self.short.find_or_insert(key, place);
        *total = total.saturating_add(count);
    }
}

#[cold]
fn add_long(counts: &mut HashMap<Box<[u8]>, u64>, word: &[u8], count: u64) {
    let total = match counts.get_mut(word) {
        Some(total) => total,
        None => counts.entry(word.into()).or_insert(0),
    };
    *total = total.saturating_add(count);
}
