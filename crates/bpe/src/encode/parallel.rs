//! Encoding on several threads: one long text cut at safe places, or many texts.
//!
//! Threads take chunks from left to right, encode each into a buffer of their own that stays in the
//! processor's cache, and append it to the result when its turn comes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::output::Output;
use super::worker::Worker;
use super::{Encoder, Id};
use crate::error::Result;
use crate::lowlevel::with_capacity;
use crate::threads;

/// Texts are dealt out in chunks of about this size. Less is not worth a thread.
const CHUNK: usize = 256 << 10;

/// The ids of several texts, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<I> {
    /// All ids.
    pub ids: Vec<I>,
    /// How many of them each text has.
    pub lens: Vec<usize>,
}

impl Encoder {
    /// Encode one text on up to `num_threads` threads.
    pub fn encode_parallel<I: Id>(&self, text: &[u8], num_threads: usize) -> Result<Vec<I>> {
        let mut position = 0;
        let chunks = std::iter::from_fn(|| {
            let rest = text.get(position..).filter(|rest| !rest.is_empty())?;
            let chunk = &rest[..self.next_cut(rest, CHUNK)];
            position += chunk.len();
            Some([chunk])
        });
        self.encode_chunks(chunks, text.len(), num_threads).map(|batch| batch.ids)
    }

    /// Encode many texts on up to `num_threads` threads.
    pub fn encode_batch<I: Id>(&self, texts: &[&[u8]], num_threads: usize) -> Result<Batch<I>> {
        let mut rest = texts;
        let chunks = std::iter::from_fn(|| {
            let mut num_bytes = 0;
            let is_last = |text: &&[u8]| {
                num_bytes += text.len();
                num_bytes >= CHUNK
            };
            let num_texts = rest.iter().position(is_last).map_or(rest.len(), |last| last + 1);
            let (chunk, later) = rest.split_at(num_texts);
            rest = later;
            (!chunk.is_empty()).then_some(chunk)
        });
        let num_bytes = texts.iter().map(|text| text.len()).sum();
        self.encode_chunks(chunks, num_bytes, num_threads)
    }

    /// Encode chunks of one or several texts, `num_bytes` in all.
    fn encode_chunks<'t, I: Id, C: AsRef<[&'t [u8]]>>(
        &self,
        chunks: impl Iterator<Item = C> + Send,
        num_bytes: usize,
        num_threads: usize,
    ) -> Result<Batch<I>> {
        let num_threads = num_threads.min(num_bytes / CHUNK + 1);
        let chunks = Mutex::new(chunks.enumerate());
        let joined = Mutex::new(Joined {
            batch: Batch { ids: with_capacity(num_bytes / 2 + 8), lens: Vec::new() },
            next: 0,
            early: BTreeMap::new(),
        });
        threads::gather(num_threads, || {
            let mut worker = Worker::new(self, Output::default(), true);
            loop {
                let Some((number, texts)) = lock(&chunks).next() else {
                    return Ok(Vec::<()>::new());
                };
                let mut lens = Vec::new();
                for text in texts.as_ref() {
                    let len_before = worker.out.ids().len();
                    worker.encode(text, &self.specials, &self.special_ids)?;
                    lens.push(worker.out.ids().len() - len_before);
                }
                lock(&joined).put(number, lens, &mut worker.out);
            }
        })?;
        Ok(joined.into_inner().unwrap_or_else(PoisonError::into_inner).batch)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts the ids of chunks that are ready in any order one behind the other.
struct Joined<I> {
    batch: Batch<I>,
    next: usize,
    early: BTreeMap<usize, (Vec<usize>, Output<I>)>,
}

impl<I: Id> Joined<I> {
    /// Take the ids of a chunk and how many each text has; leaves the output empty.
    fn put(&mut self, number: usize, lens: Vec<usize>, output: &mut Output<I>) {
        if number != self.next {
            self.early.insert(number, (lens, std::mem::take(output)));
            return;
        }
        self.append(lens, output);
        while let Some((lens, mut output)) = self.early.remove(&self.next) {
            self.append(lens, &mut output);
        }
    }

    fn append(&mut self, lens: Vec<usize>, output: &mut Output<I>) {
        self.batch.ids.extend_from_slice(output.ids());
        self.batch.lens.extend(lens);
        self.next += 1;
        output.clear();
    }
}
