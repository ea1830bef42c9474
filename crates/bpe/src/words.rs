//! Counts of words (pre-tokens).

use std::convert::Infallible;

use hashbrown::HashMap;

use crate::error::{OutOfMemory, Result as WordResult};
use crate::lowlevel::{boxed, with_capacity};
use crate::table::{GROUP, Key, Table};

/// Words with their counts, from which merges can be learned.
pub trait VisitWords {
    /// Visit every word with its count, until a visit fails.
    fn visit_words(&self, visit: &mut dyn FnMut(&[u8], u64) -> WordResult<()>) -> WordResult<()>;
}

impl VisitWords for WordCounts {
    fn visit_words(&self, visit: &mut dyn FnMut(&[u8], u64) -> WordResult<()>) -> WordResult<()> {
        self.try_for_each(visit)
    }
}

/// Counts of words.
#[derive(Debug)]
pub struct WordCounts {
    short: Table<u64>,
    long: HashMap<Box<[u8]>, u64>,
}

impl Default for WordCounts {
    fn default() -> WordCounts {
        WordCounts { short: Table::new(), long: HashMap::new() }
    }
}

impl WordCounts {
    /// An empty table.
    pub fn new() -> WordCounts {
        WordCounts::default()
    }

    /// A copy of the counts.
    pub fn try_clone(&self) -> Result<WordCounts, OutOfMemory> {
        let mut long = HashMap::new();
        long.try_reserve(self.long.len())?;
        for (word, &count) in &self.long {
            long.insert(boxed(&[word])?, count);
        }
        Ok(WordCounts { short: self.short.try_clone()?, long })
    }

    /// Count the words of `text` that begin at `start` and end at `base + ends[..]`; return the end of the
    /// last. After an error, some of them are counted.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        text: &[u8],
        mut start: usize,
        base: usize,
        ends: &[u32],
    ) -> Result<usize, OutOfMemory> {
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
                    add_long(long, &text[start..end], 1)?;
                }
                start = end;
            }
            let room = self.short.room();
            for &(key, mut place) in &lookups[..group.len()] {
                if key.is_empty() {
                    continue;
                }
                if self.short.room() != room {
                    place = self.short.view().approach(key); // the table has grown
                }
                let count = self.short.find_or_insert(key, place)?;
                *count = count.saturating_add(1); // an added count may already be the largest
            }
        }
        Ok(start)
    }

    /// Count `word` `count` times. The empty word is ignored.
    pub fn add(&mut self, word: &[u8], count: u64) -> Result<(), OutOfMemory> {
        if word.is_empty() || count == 0 {
            Ok(())
        } else if word.len() > Key::LONGEST {
            add_long(&mut self.long, word, count)
        } else {
            self.add_short(Key::pack(word, 0, word.len()), count)
        }
    }

    /// Add all of `other`. After an error, some of them are added.
    pub fn merge(&mut self, mut other: WordCounts) -> Result<(), OutOfMemory> {
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
                self.add_short(key, count)?;
            }
            if num_entries < GROUP {
                break;
            }
        }
        for (word, count) in other.long {
            self.long.try_reserve(1)?;
            let total = self.long.entry(word).or_insert(0);
            *total = total.saturating_add(count);
        }
        Ok(())
    }

    /// The number of distinct words.
    pub fn num_distinct(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Visit every word with its count, in no particular order.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], u64)) {
        let Ok(()) = self.try_for_each(|word, count| {
            visit(word, count);
            Ok::<(), Infallible>(())
        });
    }

    /// Visit every word with its count, in no particular order, until a visit fails.
    pub fn try_for_each<E>(&self, mut visit: impl FnMut(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
        for (key, count) in self.short.iter() {
            let bytes = key.unpack();
            visit(&bytes[..usize::from(bytes[Key::LONGEST])], count)?;
        }
        self.long.iter().try_for_each(|(word, &count)| visit(word, count))
    }

    /// Visit every word with its count in increasing order of words, until a visit fails.
    pub fn try_for_each_sorted<E: From<OutOfMemory>>(
        &self,
        mut visit: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        // Short words are padded with zeros, and their length follows: numbers with these bytes have the same order.
        let mut short = with_capacity(self.short.len())?;
        short.extend(self.short.iter().map(|(key, count)| (u128::from_be_bytes(key.unpack()), count)));
        short.sort_unstable();
        let mut long: Vec<(&[u8], u64)> = with_capacity(self.long.len())?;
        long.extend(self.long.iter().map(|(word, &count)| (&**word, count)));
        long.sort_unstable();
        let mut long = long.into_iter().peekable();
        for (number, count) in short {
            let bytes = number.to_be_bytes();
            let word = &bytes[..usize::from(bytes[Key::LONGEST])];
            while let Some((before, count)) = long.next_if(|&(other, _)| other < word) {
                visit(before, count)?;
            }
            visit(word, count)?;
        }
        long.try_for_each(|(word, count)| visit(word, count))
    }

    fn add_short(&mut self, key: Key, count: u64) -> Result<(), OutOfMemory> {
        let place = self.short.view().approach(key);
        let total = self.short.find_or_insert(key, place)?;
        *total = total.saturating_add(count);
        Ok(())
    }
}

#[cold]
fn add_long(counts: &mut HashMap<Box<[u8]>, u64>, word: &[u8], count: u64) -> Result<(), OutOfMemory> {
    let total = match counts.get_mut(word) {
        Some(total) => total,
        None => {
            counts.try_reserve(1)?;
            counts.entry(boxed(&[word])?).or_insert(0)
        }
    };
    *total = total.saturating_add(count);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn listed(counts: &WordCounts) -> BTreeMap<Vec<u8>, u64> {
        let mut words = BTreeMap::new();
        counts.for_each(|word, count| {
            words.insert(word.to_vec(), count);
        });
        words
    }

    #[test]
    fn words_of_every_length_are_counted_while_the_table_grows() -> Result<(), OutOfMemory> {
        let mut counts = WordCounts::new();
        let mut expected = BTreeMap::new();
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for number in 0..5000u32 {
            let word = format!("{number:0width$}", width = 1 + number as usize % 24);
            for _ in 0..1 + number % 2 {
                text.extend_from_slice(word.as_bytes());
                ends.push(text.len() as u32);
                *expected.entry(word.clone().into_bytes()).or_insert(0) += 1;
            }
        }
        assert_eq!(counts.count(&text, 0, 0, &ends)?, text.len());
        assert_eq!(listed(&counts), expected);
        assert_eq!(counts.num_distinct(), expected.len());
        assert_eq!(listed(&counts.try_clone()?), expected);
        Ok(())
    }

    #[test]
    fn sums_do_not_depend_on_which_table_is_larger_and_saturate() -> Result<(), OutOfMemory> {
        let (long, short) = (b"a word of more than 15 bytes", b"word");
        for others in [0..0, 0..9] {
            let (mut left, mut right) = (WordCounts::new(), WordCounts::new());
            for word in [long.as_slice(), short] {
                left.add(word, u64::MAX - 1)?;
                right.add(word, 3)?;
            }
            others.clone().try_for_each(|number| right.add(&[number], 1))?;
            left.merge(right)?;
            assert_eq!(left.num_distinct(), 2 + others.len());
            assert_eq!(
                (listed(&left)[long.as_slice()], listed(&left)[short.as_slice()]),
                (u64::MAX, u64::MAX)
            );
            left.count(b"word", 0, 0, &[4])?;
            assert_eq!(listed(&left)[short.as_slice()], u64::MAX);
        }
        Ok(())
    }

    #[test]
    fn the_empty_word_and_counts_of_zero_are_ignored() -> Result<(), OutOfMemory> {
        let mut counts = WordCounts::new();
        counts.add(b"", 5)?;
        counts.add(b"never", 0)?;
        assert_eq!(counts.num_distinct(), 0);
        Ok(())
    }
}
