//! Encoding on several threads: one long text cut at safe places, or many texts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Encoder, Id};
use crate::error::Result;
use crate::threads;

/// Texts are dealt out in chunks of about this size. Less is not worth a thread.
const CHUNK: usize = 256 << 10;

impl Encoder {
    /// Encode one text on up to `num_threads` threads.
    pub fn encode_parallel<I: Id>(&self, text: &[u8], num_threads: usize) -> Result<Vec<I>> {
        let num_threads = num_threads.min(text.len() / CHUNK + 1);
        if num_threads <= 1 {
            let mut ids = Vec::with_capacity(text.len() / 4 + 8);
            self.encode(text, &mut ids)?;
            return Ok(ids);
        }
        let chunks = Mutex::new(Chunks { num_dealt: 0, position: 0 });
        let ordered =
            Mutex::new(Ordered { ids: Vec::with_capacity(text.len() / 3), next: 0, early: BTreeMap::new() });
        threads::gather(num_threads, || {
            let mut ids = Vec::new();
            loop {
                let Some((number, range)) = lock(&chunks).deal(self, text) else {
                    return Ok(Vec::<()>::new());
                };
                ids.clear();
                self.encode(&text[range], &mut ids)?;
                ids = lock(&ordered).put(number, ids);
            }
        })?;
        Ok(ordered.into_inner().unwrap_or_else(PoisonError::into_inner).ids)
    }

    /// Encode many texts on up to `num_threads` threads.
    pub fn encode_batch<I: Id>(&self, texts: &[&[u8]], num_threads: usize) -> Result<Vec<Vec<I>>> {
        let num_bytes: usize = texts.iter().map(|text| text.len()).sum();
        let num_threads = num_threads.min(num_bytes / CHUNK + 1);
        // Several texts at a time, so that even tiny ones do not make the threads queue for work.
        let step = (texts.len() / (64 * num_threads.max(1))).clamp(1, 256);
        let next = AtomicUsize::new(0);
        let mut groups = threads::gather(num_threads, || {
            let mut groups = Vec::new();
            loop {
                let start = next.fetch_add(step, Ordering::Relaxed);
                let Some(group) =
                    texts.get(start..texts.len().min(start + step)).filter(|group| !group.is_empty())
                else {
                    return Ok(groups);
                };
                let encoded = group.iter().map(|text| {
                    let mut ids = Vec::with_capacity(text.len() / 3 + 4);
                    self.encode(text, &mut ids).map(|()| ids)
                });
                groups.push((start, encoded.collect::<Result<Vec<_>>>()?));
            }
        })?;
        groups.sort_unstable_by_key(|&(start, _)| start);
        Ok(groups.into_iter().flat_map(|(_, encoded)| encoded).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The chunks of a text, dealt out from left to right.
struct Chunks {
    num_dealt: usize,
    position: usize,
}

impl Chunks {
    /// The next chunk and its number.
    fn deal(&mut self, encoder: &Encoder, text: &[u8]) -> Option<(usize, Range<usize>)> {
        let start = self.position;
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        self.position += encoder.next_cut(rest, CHUNK);
        self.num_dealt += 1;
        Some((self.num_dealt - 1, start..self.position))
    }
}

/// Puts the ids of chunks that are ready in any order one behind the other.
struct Ordered<I> {
    ids: Vec<I>,
    next: usize,
    early: BTreeMap<usize, Vec<I>>,
}

impl<I: Id> Ordered<I> {
    /// Take the ids of a chunk; returns a buffer for the next.
    fn put(&mut self, number: usize, ids: Vec<I>) -> Vec<I> {
        if number != self.next {
            self.early.insert(number, ids);
            return Vec::new();
        }
        self.ids.extend_from_slice(&ids);
        self.next += 1;
        while let Some(ids) = self.early.remove(&self.next) {
            self.ids.extend_from_slice(&ids);
            self.next += 1;
        }
        ids
    }
}
