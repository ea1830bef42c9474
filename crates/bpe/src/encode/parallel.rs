//! Encoding on several threads: one long text cut at safe places, or many texts.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Encoder, Id};
use crate::error::Result;
use crate::threads;

/// Texts are dealt out in chunks of about this size. Less is not worth a thread.
const CHUNK: usize = 256 << 10;

impl Encoder {
    /// Encode one text on up to `num_threads` threads; the ids come in pieces, to be read one after the other.
    pub fn encode_pieces<I: Id>(&self, text: &[u8], num_threads: usize) -> Result<Vec<Vec<I>>> {
        let num_threads = num_threads.min(text.len() / CHUNK + 1);
        if num_threads <= 1 {
            let mut ids = Vec::with_capacity(text.len() / 4);
            self.encode(text, &mut ids)?;
            return Ok(vec![ids]);
        }
        let next_start = Mutex::new((0, 0));
        let next_chunk = || -> Option<(usize, Range<usize>)> {
            let mut next = next_start.lock().unwrap_or_else(PoisonError::into_inner);
            let (index, start) = *next;
            if start >= text.len() {
                return None;
            }
            let end = start + self.next_cut(&text[start..], CHUNK);
            *next = (index + 1, end);
            Some((index, start..end))
        };
        let mut pieces = threads::gather(num_threads, || {
            let mut pieces = Vec::new();
            while let Some((index, range)) = next_chunk() {
                let mut ids = Vec::with_capacity(range.len() / 2);
                self.encode(&text[range], &mut ids)?;
                pieces.push((index, ids));
            }
            Ok(pieces)
        })?;
        pieces.sort_unstable_by_key(|&(index, _)| index);
        Ok(pieces.into_iter().map(|(_, ids)| ids).collect())
    }

    /// Encode many texts on up to `num_threads` threads.
    pub fn encode_batch<I: Id>(&self, texts: &[&[u8]], num_threads: usize) -> Result<Vec<Vec<I>>> {
        let num_bytes: usize = texts.iter().map(|text| text.len()).sum();
        let num_threads = num_threads.min(num_bytes / CHUNK + 1);
        // Several texts at a time, so that even tiny ones do not make the threads queue for work.
        let step = (texts.len() / (64 * num_threads)).clamp(1, 256);
        let next = AtomicUsize::new(0);
        let mut groups = threads::gather(num_threads, || {
            let mut groups = Vec::new();
            loop {
                let start = next.fetch_add(step, Ordering::Relaxed);
                let Some(group) = texts.get(start..texts.len().min(start + step)).filter(|group| !group.is_empty())
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
