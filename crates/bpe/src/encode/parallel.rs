//! Encoding on several threads: one long text split at safe cuts, or many texts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::output::Output;
use super::worker::Worker;
use super::{Encoder, Id};
use crate::error::{OutOfMemory, Result};
use crate::lowlevel::{defaults, extend, push, with_capacity};
use crate::threads;

/// The approximate size of a chunk. Less text is not worth a thread.
const CHUNK: usize = 256 << 10;
/// The ids of this much text in a batch share one block of memory. New memory causes a page fault per page, so
/// allocating many small vectors would take longer than filling them.
const BLOCK: usize = 8 << 20;

/// The ids of several texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<I> {
    /// All ids, in no particular order.
    pub blocks: Vec<Vec<I>>,
    /// The block and the range of the ids of each text.
    pub places: Vec<(usize, Range<usize>)>,
}

impl<I> Batch<I> {
    /// The ids of every text, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[I]> {
        self.places.iter().map(|(block, range)| &self.blocks[*block][range.clone()])
    }
}

impl Encoder {
    /// Encode one text on this thread to a new vector; all special tokens are recognised.
    pub fn encode_whole<I: Id>(&self, text: &[u8]) -> Result<Vec<I>> {
        self.check_bytes(text, &self.specials)?;
        let mut worker = Worker::new(self, Output::after(room_for(text.len())?), true);
        worker.encode(text, &self.specials, &self.special_ids)?;
        Ok(worker.out.into_vec())
    }

    /// Encode one text on up to `num_threads` threads.
    ///
    /// Each thread encodes chunks to a small buffer and appends them to the ids in order.
    pub fn encode_parallel<I: Id>(&self, text: &[u8], num_threads: usize) -> Result<Vec<I>> {
        let num_threads = num_threads.min(text.len() / CHUNK + 1);
        if num_threads <= 1 || self.next_cut(text, CHUNK) == text.len() {
            return self.encode_whole(text);
        }
        self.check_bytes(text, &self.specials)?;
        let mut position = 0;
        let chunks = Mutex::new((0..).map_while(|number: usize| {
            let rest = text.get(position..).filter(|rest| !rest.is_empty())?;
            let chunk = &rest[..self.next_cut(rest, CHUNK)];
            position += chunk.len();
            Some((number, chunk))
        }));
        let joined = Mutex::new(Joined { ids: room_for(text.len())?, next: 0, early: BTreeMap::new() });
        threads::gather(num_threads, |stop| {
            let mut worker = Worker::new(self, Output::default(), true);
            while !stop.load(Ordering::Relaxed) {
                let Some((number, chunk)) = lock(&chunks).next() else { break };
                worker.encode(chunk, &self.specials, &self.special_ids)?;
                lock(&joined).put(number, &mut worker.out)?;
            }
            Ok(())
        })?;
        Ok(joined.into_inner().unwrap_or_else(PoisonError::into_inner).ids)
    }

    /// Encode many texts on up to `num_threads` threads.
    pub fn encode_batch<I: Id>(&self, texts: &[&[u8]], num_threads: usize) -> Result<Batch<I>> {
        texts.iter().try_for_each(|text| self.check_bytes(text, &self.specials))?;
        let num_bytes: usize = texts.iter().map(|text| text.len()).sum();
        let num_threads = num_threads.min(num_bytes / CHUNK + 1);
        let block_bytes = BLOCK.min(num_bytes);
        let mut position = 0;
        let chunks = Mutex::new(std::iter::from_fn(|| {
            let start = position;
            let mut num_bytes = 0;
            while position < texts.len() && num_bytes < CHUNK {
                num_bytes += texts[position].len();
                position += 1;
            }
            (start < position).then_some(start..position)
        }));
        let encoded = threads::gather(num_threads, |stop| {
            let mut blocks = Vec::new();
            let mut places = Vec::new();
            let mut worker = Worker::new(self, Output::default(), true);
            while !stop.load(Ordering::Relaxed) {
                let Some(chunk) = lock(&chunks).next() else { break };
                for (number, &text) in chunk.clone().zip(&texts[chunk]) {
                    if worker.out.spare() < text.len() / 2 {
                        let next = Output::after(room_for(block_bytes.max(text.len()))?);
                        blocks.push(std::mem::replace(&mut worker.out, next).into_vec());
                    }
                    let start = worker.out.len();
                    worker.encode(text, &self.specials, &self.special_ids)?;
                    push(&mut places, (number, blocks.len(), start..worker.out.len()))?;
                }
            }
            blocks.push(worker.out.into_vec());
            Ok((blocks, places))
        })?;
        let mut batch = Batch { blocks: Vec::new(), places: defaults(texts.len())? };
        for (blocks, places) in encoded {
            for (number, block, range) in places {
                batch.places[number] = (batch.blocks.len() + block, range);
            }
            batch.blocks.extend(blocks);
        }
        Ok(batch)
    }
}

/// Memory for the ids of `num_bytes` of text; few texts need more.
fn room_for<I>(num_bytes: usize) -> Result<Vec<I>, OutOfMemory> {
    with_capacity(num_bytes / 2 + 8)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends the ids of chunks in order; chunks may finish in any order.
struct Joined<I> {
    ids: Vec<I>,
    next: usize,
    early: BTreeMap<usize, Output<I>>,
}

impl<I: Id> Joined<I> {
    /// Take the ids of a chunk and clear the output.
    fn put(&mut self, number: usize, output: &mut Output<I>) -> Result<(), OutOfMemory> {
        if number != self.next {
            self.early.insert(number, std::mem::take(output));
            return Ok(());
        }
        self.append(output)?;
        while let Some(mut output) = self.early.remove(&self.next) {
            self.append(&mut output)?;
        }
        Ok(())
    }

    fn append(&mut self, output: &mut Output<I>) -> Result<(), OutOfMemory> {
        extend(&mut self.ids, output.ids())?;
        self.next += 1;
        output.clear();
        Ok(())
    }
}
