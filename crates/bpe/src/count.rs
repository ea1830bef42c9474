//! Counting the words of files and texts in parallel. Memory grows only with the number of distinct words.
//!
//! Files are memory-mapped and distributed in chunks that end at safe cuts. Each thread counts into its own table.
//! The tables are added at the end, so the result does not depend on the number of threads.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cut::next_cut;
use crate::error::{Error, Result};
use crate::pattern::Pattern;
use crate::source::Source;
use crate::special::{Piece, Specials};
use crate::threads;
use crate::word_table::WordTable;
use crate::words::WordCounts;

/// Large enough to hide the cost of fetching a chunk, and small enough for its words to stay in the cache.
const CHUNK: usize = 128 << 10;

/// The amount of counted text and the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountStats {
    /// Bytes read.
    pub num_bytes: u64,
    /// Words counted, including repetitions.
    pub num_words: u64,
    /// Time spent reading and scanning, summed over threads.
    pub scan_time: Duration,
    /// Time spent counting, summed over threads.
    pub count_time: Duration,
}

impl CountStats {
    /// Add the amounts and times of other text.
    pub(crate) fn add(&mut self, other: CountStats) {
        self.num_bytes = self.num_bytes.saturating_add(other.num_bytes);
        // Counts that were added as numbers, and those of tables, may have any size.
        self.num_words = self.num_words.saturating_add(other.num_words);
        self.scan_time = self.scan_time.saturating_add(other.scan_time);
        self.count_time = self.count_time.saturating_add(other.count_time);
    }
}

/// Counts words of texts and files.
pub struct Counter {
    pattern: Pattern,
    specials: Specials,
    counts: WordCounts,
    stats: CountStats,
}

impl Counter {
    /// A counter without words.
    pub fn new(pattern: Pattern, specials: Specials) -> Counter {
        Counter { pattern, specials, counts: WordCounts::new(), stats: CountStats::default() }
    }

    /// A copy of the counts.
    pub fn try_clone(&self) -> Result<Counter> {
        let (pattern, specials) = (self.pattern.clone(), self.specials.clone());
        Ok(Counter { pattern, specials, counts: self.counts.try_clone()?, stats: self.stats })
    }

    /// The amount of counted text so far.
    pub fn stats(&self) -> CountStats {
        self.stats
    }

    /// The counts so far.
    pub fn counts(&self) -> &WordCounts {
        &self.counts
    }

    /// Consume the counter and return the counts.
    pub fn into_counts(self) -> WordCounts {
        self.counts
    }

    /// The counts so far as a table.
    pub fn table(&self) -> Result<WordTable> {
        WordTable::new(&self.counts, self.stats)
    }

    /// The first safe cut of a text at or after `from`, or its end (see [`cut`](crate::cut)).
    pub fn next_cut(&self, text: &[u8], from: usize) -> usize {
        next_cut(&self.pattern, &self.specials, text, from)
    }

    /// Count one text on this thread. No word extends over two texts. If a user-defined pattern fails or memory runs
    /// out, the words before that position are counted.
    pub fn add_text(&mut self, text: &[u8]) -> Result<()> {
        let Counter { pattern, specials, counts, stats } = self;
        let mut rest = text;
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(next_cut(pattern, specials, rest, CHUNK));
            count_chunk(pattern, specials, chunk, counts, stats, &AtomicBool::new(false))?;
            rest = behind;
        }
        Ok(())
    }

    /// Count a part of a file on this thread. The part must begin and end at safe cuts. After an error, some of its
    /// words may have been counted.
    pub fn add_file_part(&mut self, path: &Path, part: Range<usize>) -> Result<()> {
        let source = Source::open(path)?;
        let Some(text) = source.get(part.clone()) else {
            let (expected, found) = (part.end, source.len());
            let message =
                format!("it was changed while it was read: expected {expected} bytes or more, found {found}");
            return Err(Error::of_file(path, io::Error::new(io::ErrorKind::UnexpectedEof, message)));
        };
        self.add_text(text)
    }

    /// Add words with their counts.
    pub fn add_word(&mut self, word: &[u8], count: u64) -> Result<()> {
        self.counts.add(word, count)?;
        self.stats.num_words = self.stats.num_words.saturating_add(count);
        Ok(())
    }

    /// Count files on `num_threads` threads. `on_progress` is called with the number of bytes done and can stop
    /// the work by returning false. If one file fails, none is counted. If memory runs out at the end, while the
    /// counts of the threads are added, some are counted.
    pub fn add_files(
        &mut self,
        paths: &[PathBuf],
        num_threads: usize,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let queue = Mutex::new(Queue { paths: paths.to_vec(), next_path: 0, current: None });
        let bytes_done = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let (pattern, specials) = (&self.pattern, &self.specials);
        let mut heartbeat = || on_progress(bytes_done.load(Ordering::Relaxed));
        let shares = threads::gather_watched(num_threads, &stop, &mut heartbeat, || {
            let (mut counts, mut stats) = (WordCounts::new(), CountStats::default());
            while !stop.load(Ordering::Relaxed) {
                let chunk = queue.lock().unwrap_or_else(PoisonError::into_inner).next(pattern, specials)?;
                let Some((file, range)) = chunk else { break };
                bytes_done.fetch_add(range.len() as u64, Ordering::Relaxed);
                count_chunk(pattern, specials, &file[range], &mut counts, &mut stats, &stop)?;
            }
            Ok(vec![(counts, stats)])
        })?;
        if !heartbeat() {
            return Err(Error::Interrupted);
        }
        let started = Instant::now();
        for (counts, stats) in shares {
            self.stats.add(stats);
            self.counts.merge(counts)?;
        }
        self.stats.count_time += started.elapsed();
        Ok(())
    }
}

/// Count a chunk that begins and ends at safe cuts. Text without a safe cut is one chunk, however large it is, so
/// `stop` is checked within a chunk.
fn count_chunk(
    pattern: &Pattern,
    specials: &Specials,
    chunk: &[u8],
    counts: &mut WordCounts,
    stats: &mut CountStats,
    stop: &AtomicBool,
) -> Result<()> {
    stats.num_bytes += chunk.len() as u64;
    let mut last = Instant::now();
    specials.split(chunk, |piece| {
        let Piece::Text(text) = piece else { return Ok(()) };
        let mut start = 0;
        pattern.scan(text, |base, ends| {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let scanned = Instant::now();
            start = counts.count(text, start, base, ends)?;
            let counted = Instant::now();
            stats.num_words = stats.num_words.saturating_add(ends.len() as u64);
            stats.scan_time += scanned - last;
            stats.count_time += counted - scanned;
            last = counted;
            Ok(())
        })
    })
}

/// The files that remain to be counted, distributed in chunks.
struct Queue {
    paths: Vec<PathBuf>,
    next_path: usize,
    current: Option<(Arc<Source>, usize)>,
}

impl Queue {
    fn next(
        &mut self,
        pattern: &Pattern,
        specials: &Specials,
    ) -> Result<Option<(Arc<Source>, Range<usize>)>> {
        loop {
            if let Some((source, start)) = &mut self.current
                && *start < source.len()
            {
                let length = next_cut(pattern, specials, &source[*start..], CHUNK);
                let range = *start..*start + length;
                *start = range.end;
                return Ok(Some((source.clone(), range)));
            }
            let Some(path) = self.paths.get(self.next_path) else { return Ok(None) };
            self.next_path += 1;
            self.current = Some((Arc::new(Source::open(path)?), 0));
        }
    }
}
