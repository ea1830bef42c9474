//! The output buffer for ids.

use super::Id;
use crate::error::OutOfMemory;
use crate::lowlevel::with_capacity;

/// How far ahead of the ids memory is filled with zeros: no more than fits into the processor's cache.
const STEP: usize = 1 << 14;

/// A vector that is written beyond its end and truncated afterwards.
///
/// So ids can be written without a capacity check for each.
#[derive(Debug, Default)]
pub(crate) struct Output<I> {
    ids: Vec<I>,
    len: usize,
}

impl<I: Id> Output<I> {
    /// Write after the contents of a vector.
    pub(crate) fn after(ids: Vec<I>) -> Output<I> {
        Output { len: ids.len(), ids }
    }

    /// All ids.
    pub(crate) fn into_vec(mut self) -> Vec<I> {
        self.ids.truncate(self.len);
        self.ids
    }

    /// All ids.
    pub(crate) fn ids(&self) -> &[I] {
        &self.ids[..self.len]
    }

    /// The number of ids.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of further ids for which memory is reserved.
    pub(crate) fn spare(&self) -> usize {
        self.ids.capacity() - self.len
    }

    /// Remove all ids, but keep the memory.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// A slice for at least `num_ids`, which count only after `advance`.
    #[inline(always)]
    pub(crate) fn room(&mut self, num_ids: usize) -> Result<&mut [I], OutOfMemory> {
        if self.ids.len() - self.len < num_ids {
            self.grow(num_ids)?;
        }
        Ok(&mut self.ids[self.len..])
    }

    /// Add the number of ids that were written to the slice.
    #[inline(always)]
    pub(crate) fn advance(&mut self, num_ids: usize) {
        self.len += num_ids;
    }

    /// Append some ids.
    #[inline]
    pub(crate) fn extend(&mut self, ids: impl ExactSizeIterator<Item = u32>) -> Result<(), OutOfMemory> {
        let num_ids = ids.len();
        for (place, id) in self.room(num_ids)?.iter_mut().zip(ids) {
            *place = I::from_id(id);
        }
        self.advance(num_ids);
        Ok(())
    }

    #[cold]
    fn grow(&mut self, num_ids: usize) -> Result<(), OutOfMemory> {
        self.ids.truncate(self.len);
        if self.len == 0 && self.ids.capacity() < num_ids {
            self.ids = with_capacity(num_ids)?; // nothing has to be moved
        }
        self.ids.try_reserve(num_ids)?;
        let len = self.ids.capacity().min(self.len + num_ids.max(STEP));
        self.ids.resize(len, I::default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_were_not_advanced_over_are_dropped() -> Result<(), OutOfMemory> {
        let mut output = Output::after(vec![1u16, 2]);
        output.room(100)?[..3].copy_from_slice(&[3, 4, 5]);
        output.advance(2);
        output.extend([6].into_iter())?;
        assert_eq!((output.ids(), output.len()), (&[1, 2, 3, 4, 6][..], 5));
        assert_eq!(output.into_vec(), [1, 2, 3, 4, 6]);
        Ok(())
    }

    #[test]
    fn the_requested_room_is_always_available() -> Result<(), OutOfMemory> {
        let mut output: Output<u32> = Output::default();
        for number in 0..100 * STEP {
            assert!(output.room(1 + number % 99)?.len() > number % 99);
            output.extend([number as u32].into_iter())?;
        }
        assert!(output.ids().iter().copied().eq(0..100 * STEP as u32));
        output.clear();
        assert_eq!(output.into_vec(), []);
        Ok(())
    }
}
