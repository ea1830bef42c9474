//! Where ids are written.

use super::Id;

/// A vector that is written to beyond its end, to be cut off where writing stopped.
#[derive(Debug, Default)]
pub(crate) struct Output<I> {
    ids: Vec<I>,
    len: usize,
}

impl<I: Id> Output<I> {
    /// Write behind what is in a vector.
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

    /// Begin anew, in the same memory.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Room for `num_ids` at least, which count only after `advance`.
    #[inline(always)]
    pub(crate) fn room(&mut self, num_ids: usize) -> &mut [I] {
        if self.ids.len() - self.len < num_ids {
            self.grow(num_ids);
        }
        &mut self.ids[self.len..]
    }

    /// Say how many ids were written into the room.
    #[inline(always)]
    pub(crate) fn advance(&mut self, num_ids: usize) {
        self.len += num_ids;
    }

    /// Append one.
    #[inline]
    pub(crate) fn push(&mut self, id: u32) {
        self.room(1)[0] = I::from_id(id);
        self.advance(1);
    }

    #[cold]
    fn grow(&mut self, num_ids: usize) {
        self.ids.truncate(self.len);
        let len = (self.len + num_ids).max(self.ids.capacity()).max(2 * self.len);
        self.ids.resize(len, I::default());
    }
}
